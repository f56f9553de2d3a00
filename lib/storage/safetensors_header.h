// Parses the JSON header of safetensors files, without their data.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "storage/safetensors.h"

namespace mtrain::storage {

inline constexpr int64_t kSafetensorsLengthBytes = 8;  // the length of the header, before it
inline constexpr int64_t kLargestSafetensorsHeader = 100'000'000;  // the format's own limit

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their data
  Metadata metadata;
};

// `text` is the JSON of a file that has `data_bytes` bytes after it. Throws UserError, which names
// `path` and the tensor, unless the tensors are sound and cover the data exactly.
SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view text,
                                           int64_t data_bytes);

// Returns the error of a damaged file.
UserError unsound_safetensors(const std::filesystem::path& path, const std::string& what);

}  // namespace mtrain::storage
