// Reads quantization_config of Hugging Face's config.json.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "storage/scaled_folder.h"

namespace mtrain::interchange {

// Returns the size of the blocks that have a scale each, if weights are in 8 bits as DeepSeek-V3
// publishes them. Returns nothing if the text of config.json has no quantization_config. Throws
// UserError for any other quantization; messages call the file `path`.
std::optional<storage::ScaleBlock> read_scale_block(std::string_view config,
                                                    const std::string& path);

}  // namespace mtrain::interchange
