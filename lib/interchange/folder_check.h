// Compares the tensors of a Hugging Face folder with those that its config.json implies.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/tensor_map.h"
#include "storage/safetensors_folder.h"
#include "storage/scaled_folder.h"

namespace mtrain::interchange {

// The multi-token prediction layers [first, end) that are not read.
struct MtpLayers {
  int64_t first = 0, end = 0;
  bool contains(const Family& family, std::string_view tensor) const;
};

// Returns how many layers of multi-token prediction the folder's config.json names.
int64_t count_mtp_layers(const std::filesystem::path& folder, const Family& family);

// Throws UserError if config.json implies far more layers or experts than the folder has tensors.
// Call it before making a TensorMap, whose names could otherwise fill the memory.
void check_tensor_count(const storage::SafetensorsFolder& folder, const spec::ModelSpec& model,
                        const NameForm& form);

// Returns one line for each tensor that is missing, is not used, or has a different shape or a
// dtype that cannot be read. Skips known buffers of older versions, and the layers of `mtp`.
// Weights may be in 8 bits if `scales` is given; their scales are then checked, too. Reads no data.
std::vector<std::string> tensor_mistakes(const storage::SafetensorsFolder& folder,
                                         const TensorMap& map, const MtpLayers& mtp = {},
                                         const std::optional<storage::ScaleBlock>& scales = {});

// Throws UserError if embeddings are tied, but the folder's output layer differs from the table:
// transformers would ignore that output layer. Or if TensorMap::copies() differ from what they
// copy. Reads these tensors from `values`, piece by piece.
void check_copies(const storage::SafetensorsFolder& folder, const storage::ValueSource& values,
                  const TensorMap& map);

}  // namespace mtrain::interchange
