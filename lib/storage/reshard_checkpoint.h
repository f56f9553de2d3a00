// Writes a checkpoint again with its tensors in another number of files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

namespace mtrain::storage {

struct ReshardOptions {
  int files = 1;  // of weights, and as many of the optimizer's state
  // Called after each piece of a few MiB with the bytes of tensors; may be empty. An exception from
  // it ends the work, and nothing is left.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct Resharded {
  std::filesystem::path checkpoint;  // the new one, in the new folder
  int64_t step = 0, tensors = 0, bytes = 0;
  int files = 0;  // that hold tensors
};

// Writes the checkpoint in `source`, of format 1 or 2, as one of format 2 into the new folder of
// checkpoints `output`, which appears completely or not at all. The tensors and the other files are
// the same, bit by bit; the consolidated form is left out. Each file holds an equal part of the
// bytes of its set; a tensor may be divided among files. Every byte is checked when it is read, and
// again when the new checkpoint is complete. Memory does not depend on the size. Throws UserError
// if `source` is not a checkpoint or `output` exists; RunError for damage or a lack of space.
Resharded reshard_checkpoint(const std::filesystem::path& source,
                             const std::filesystem::path& output, const ReshardOptions& options);

}  // namespace mtrain::storage
