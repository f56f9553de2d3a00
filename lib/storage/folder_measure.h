// The size and the age of a folder's files.
#pragma once
#include <cstdint>
#include <filesystem>

namespace mtrain::storage {

struct FolderMeasure {
  int64_t bytes = 0;
  int64_t newest = 0;  // seconds since 1970, when the newest file was written; 0 without files
};

// Counts the regular files in `folder`, at any depth. Files may disappear meanwhile.
FolderMeasure measure_folder(const std::filesystem::path& folder);

}  // namespace mtrain::storage
