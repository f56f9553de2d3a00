// Reads all of a checkpoint, and checks every byte.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mtrain::storage {

struct Verified {
  int64_t step = 0, files = 0, blocks = 0, bytes = 0;  // that were read and compared
  bool has_sums = true;             // false: an earlier version saved it, and only sizes are known
  std::vector<std::string> faults;  // each names a file and, in a block of tensors, the tensors
};

// Reports every fault of the checkpoint in `folder`, and does not stop at the first. Calls
// `progress` with the bytes that were read, and with the total. Throws UserError if the folder is
// not a checkpoint of mtrain.
Verified verify_checkpoint(const std::filesystem::path& folder,
                           const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace mtrain::storage
