// Options of data parallelism: how gradients are reduced and parameters are gathered.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "plan/shard_level.h"

namespace mtrain::plan {

struct ReduceOptions {
  DType dtype = DType::f32;  // type on the wire; 16 bits halve the bytes and round before each sum
  bool average = false;      // average gradients, which backward multiplies by the ranks
};

// Every rank has full parameters and updates its part of them (ZeRO-1 and -2).
struct GatheredParamsOptions {
  bool overlap = true;  // gathers run during the updates of later units and the next forward
  // The gathers of these units start right after their own update, the others' after the last
  // update.
  enum class DuringUpdate { none, first_stage, all } during_update = DuringUpdate::all;
  // Whether all gathers that start after the last update start at once. Otherwise a unit's gather
  // starts when forward reaches the unit before it. The gathers of a rank's later stage all start
  // when forward reaches the last unit of the stage before.
  bool together = true;
  // As those of ShardedParamsOptions, of the memory in which a rank keeps its full parameters.
  bool registered = false, symmetric = false;
};

// A rank keeps only its own part of the parameters (ZeRO-3, FSDP).
struct ShardedParamsOptions {
  // Whether full values are freed between forward and backward, in units without and with experts.
  bool reshard_after_forward = true, reshard_experts = true;
  int64_t forward_prefetch = 1, backward_prefetch = 2;  // units gathered ahead of their use
  bool passes_pair = false;  // a forward and a backward run together, and use different units
  // Whether buffers of full values are registered with the group that gathers them, and whether at
  // the same offsets on all ranks, so that copy engines may move them.
  bool registered = false, symmetric = false;

  // How many units have full values at once: those in use, and those that are gathered ahead.
  int64_t units_at_once() const {
    return passes_pair ? 2 + forward_prefetch + backward_prefetch
                       : 1 + std::max(forward_prefetch, backward_prefetch);
  }
  // How many of them may be units of experts, which alternate with the other units of their layers.
  int64_t experts_at_once() const {
    const auto half = [](int64_t units) { return (units + 1) / 2; };
    return passes_pair ? half(1 + forward_prefetch) + half(1 + backward_prefetch)
                       : half(units_at_once());
  }
};

struct DataParallelOptions {
  ShardLevel shards = ShardLevel::nothing;
  ReduceOptions reduce;
  bool overlap_grad_reduce = true;
  // Parameters of a stage that are reduced at once; a unit that is larger is divided into pieces.
  int64_t bucket_size = 40'000'000;
  bool defer_reduce = true;  // sharded gradients are reduced with the last micro-batch only
  // The type in which weights travel that GEMMs read in 8 bits; absent: as all other parameters.
  std::optional<DType> gather_as = std::nullopt;
  GatheredParamsOptions gather_updated;  // for the levels optimizer and gradients
  ShardedParamsOptions gather;           // for the level parameters
};

}  // namespace mtrain::plan
