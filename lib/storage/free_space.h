// Asks for the space of a checkpoint before it is written.
#pragma once
#include <cstdint>
#include <filesystem>

namespace mtrain::storage {

// Throws RunError, with both numbers, if a checkpoint with tensors of `bytes` bytes, its other
// files and some reserve do not fit into the folder.
void require_space(const std::filesystem::path& folder, int64_t bytes);

}  // namespace mtrain::storage
