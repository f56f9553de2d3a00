// The groups and streams of data parallelism on one rank.
#pragma once
#include "comm/group.h"
#include "device/stream.h"

namespace mtrain::parallel {

// Gradients and parameters travel on streams of their own, so that neither waits for the other.
struct DataGroups {
  int rank = 0, size = 1;  // rank and number of the replicas that read different samples
  Group all;               // dp_cp: the ranks whose gradients are summed; uses `grad_stream`
  Group shards;            // dp_shard_cp: ranks that own different parts; uses `grad_stream`
  Group replicas;          // dp_replicate: ranks that own the same part; uses `grad_stream`
  Group gather;            // the ranks of `shards` again; uses `param_stream`
  // param_stream is null if nothing is sharded, and both are null for a single rank.
  Stream *compute = nullptr, *grad_stream = nullptr, *param_stream = nullptr;
};

}  // namespace mtrain::parallel
