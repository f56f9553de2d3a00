// What one rank saves of a training, tensor by tensor.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/save_plan.h"
#include "checkpoint/train_checkpoint.h"
#include "storage/checkpoint_index.h"

namespace mtrain::checkpoint {

// The files of a rank, in the order in which they are written.
inline constexpr storage::TensorSet kShardSets[] = {storage::TensorSet::weights,
                                                    storage::TensorSet::optimizer};

// A tensor of a rank's file, which is a piece of a saved tensor.
struct ShardPiece {
  std::string tensor;  // its name, without that of the piece
  Shape shape;         // of the full tensor
  StridedRun run;
  DType dtype = DType::f32;

  std::string name() const { return storage::piece_name(tensor, run); }
  int64_t count() const { return run.total(); }  // elements
  int64_t bytes() const { return count() * dtype_size(dtype); }
};

// A piece whose values are in the training's memory.
struct LivePiece : ShardPiece {
  Tensor values;  // of one dimension
};

// Returns the pieces of one file, in the order in which the file has them. Those of rank 0 include
// the replicated tensors.
std::vector<LivePiece> live_pieces(const CheckpointParts& parts, storage::TensorSet set);

// Makes `compute` wait for gathers that started after the last update: they may still write the
// units' values.
void await_values(const CheckpointParts& parts);

// Returns the bytes of the tensors that this rank writes.
int64_t shard_bytes(const CheckpointParts& parts);

}  // namespace mtrain::checkpoint
