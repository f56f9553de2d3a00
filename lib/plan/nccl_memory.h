// Estimates the GPU memory that NCCL keeps for a rank's groups. NCCL offers no way to ask for it
// before the communicators exist, and the figures are NCCL's defaults: this is an estimate.
//
// - A connection has a buffer for each protocol. NCCL's user guide gives 4 MiB for NCCL_BUFFSIZE,
//   the buffer of long messages; init.cc of NCCL 2.28 has 512 KiB and 4.7 MiB for the two protocols
//   of short ones. The receiving rank keeps them.
// - A collective has a connection for each of its channels (a channel is a block of its kernel), in
//   a ring and in a tree. NCCL chooses up to 32 channels; with NVLink 4 it takes about 16. A bound
//   of blocks also bounds channels. Messages have connections of their own, to each peer.
// - Where a switch sums (NVLink SHARP, from Hopper on), each of the host's ranks in a group of more
//   than two has two buffers of 8 steps for each of 16 channels (transport/nvls.cc; NVLS).
// - Groups that share resources have the buffers of the group that owns them.
#pragma once
#include "mesh/group_split.h"
#include "plan/model_size.h"

namespace mtrain::plan {

struct RunPlan;

struct NcclMachine {
  int64_t ranks_per_host = 8;
  bool switch_sums = true;  // NVLink SHARP
};

// Returns the bytes for one of a rank's groups; 0 if the rank has none, or if it is shared.
Count nccl_bytes(const mesh::CountedSplit& group, const NcclMachine& machine);

// Returns the bytes for all groups of the rank; 0 if the plan does not communicate by NCCL.
Count nccl_bytes(const RunPlan& plan, int64_t rank, const NcclMachine& machine);

}  // namespace mtrain::plan
