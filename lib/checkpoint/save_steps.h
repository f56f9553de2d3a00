// The steps of a save that a synchronous save and one in the background have in common.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/shard_writer.h"
#include "checkpoint/train_checkpoint.h"

namespace mtrain::checkpoint {

// What rank 0 writes besides the tensors, as it was at the saved step.
struct SavedState {
  TrainProgress progress;
  std::string float8;  // float8_state()
  int64_t ranks = 1;
  std::vector<spec::TensorSpec> parameters;  // all of the model
};
// All ranks must call it.
SavedState saved_state(const CheckpointParts& parts, const TrainProgress& progress);

// Writes state.json, which has the recipe and the entries of `options`, and recipe.yaml.
void write_state(const SavedState& saved, const SaveOptions& options,
                 const std::filesystem::path& folder);

// Adds the files that a rank has written to the index, and their hashes to `sums`.
void add_shards(const std::vector<WrittenShard>& shards, storage::CheckpointIndex& index,
                std::map<std::string, std::string>& sums);

// Returns the bytes of all tensors of the checkpoint. All ranks must call it.
int64_t bytes_of_all_ranks(const CheckpointParts& parts);

// Waits until this host sees the folder of a checkpoint that rank 0 has made: some file systems
// show new files late. Calls `meanwhile` from time to time. Throws RunError after a minute.
void await_folder(const std::filesystem::path& folder, const std::function<void()>& meanwhile);

// Prepares the commit of a save on rank 0: collects the files of all ranks, whose shards_text()
// `texts` has, and writes state.json; for options.added also index.json. Calls `meanwhile` from
// time to time while it waits for files.
void prepare_commit(storage::CheckpointWriter& writer, const SavedState& state,
                    const std::vector<std::string>& texts, SaveOptions& options,
                    const std::function<void()>& meanwhile);

}  // namespace mtrain::checkpoint
