// Finds the files of a checkpoint that a rank reads.
#pragma once
#include <vector>

#include "checkpoint/train_checkpoint.h"
#include "storage/checkpoint_index.h"

namespace mtrain::checkpoint {

// Returns for each of the index's files whether this rank reads elements in it when it loads the
// checkpoint: elements that it owns, or of replicated tensors.
std::vector<bool> needed_files(const CheckpointParts& parts, const storage::CheckpointIndex& index);

}  // namespace mtrain::checkpoint
