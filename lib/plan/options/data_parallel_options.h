// How gradients are reduced and parameters gathered over data-parallel ranks.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "plan/shard_level.h"

namespace mtrain::plan {

struct ReduceOptions {
  DType dtype = DType::f32;  // on the wire; bf16 halves the bytes, and rounds before each sum
  bool average = false;      // the collective averages gradients that are scaled up by the ranks
};

// Every rank has whole parameters and updates its part of them (ZeRO-1 and -2).
struct GatheredParamsOptions {
  bool overlap = true;  // gather behind the updates of later units and the next forward
  // The gathers of these units start with their own update, the others' after the last unit's.
  enum class DuringUpdate { none, first_stage, all } during_update = DuringUpdate::all;
  bool together = true;  // those all start then; else each when forward comes to the unit before it
};

// A rank keeps only its own part of the parameters (ZeRO-3, FSDP).
struct ShardedParamsOptions {
  bool reshard_after_forward = true;  // free whole values between forward and backward
  int64_t forward_prefetch = 1, backward_prefetch = 2;  // units gathered ahead of their use
};

struct DataParallelOptions {
  ShardLevel shards = ShardLevel::nothing;
  ReduceOptions reduce;
  bool overlap_grad_reduce = true;
  int64_t bucket_size = 40'000'000;  // parameters reduced at once; units are cut for smaller ones
  bool defer_reduce = true;          // sharded gradients: reduce with the last micro-batch only
  GatheredParamsOptions gather_updated;
  ShardedParamsOptions gather;
};

}  // namespace mtrain::plan
