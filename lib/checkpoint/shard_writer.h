// Writes what one rank saves of a training: a file of weights, and one of the optimizer's state.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/snapshot.h"
#include "checkpoint/train_checkpoint.h"
#include "storage/checkpoint_index.h"

namespace mtrain::checkpoint {

// A file that a rank has written.
struct WrittenShard {
  std::string name;
  int64_t bytes = 0;
  std::string sums_hash;           // of its .sums file
  storage::CheckpointIndex index;  // of this file alone
};

// Receives the bytes of tensors that are written, and their total.
using WriteProgress = std::function<void(int64_t done, int64_t total)>;

// Writes this rank's files into `folder`, and returns them; none that would be empty. Rank 0 also
// writes the replicated tensors. Waits for the work on `compute`. Calls `progress` after each piece
// of at most 16 MiB, and `in_background` with work that does not use the device. Throws RunError.
std::vector<WrittenShard> write_shards(
    const CheckpointParts& parts, const std::filesystem::path& folder,
    const WriteProgress& progress,
    const std::function<void(const std::function<void()>&)>& in_background);
// The same with a copy of the training; `rank` is this rank. Uses no device, waits for the copy,
// and may run in any thread. `io_threads` write while it copies.
std::vector<WrittenShard> write_shards(const Snapshot& snapshot, int rank,
                                       const std::filesystem::path& folder, int io_threads,
                                       const WriteProgress& progress);

// The text in which a rank sends these files to rank 0, and its reader.
std::string shards_text(const std::vector<WrittenShard>& shards);
std::vector<WrittenShard> parse_shards(const std::string& text);

}  // namespace mtrain::checkpoint
