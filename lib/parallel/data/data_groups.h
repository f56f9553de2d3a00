// The groups and streams of data parallelism on one rank.
#pragma once
#include "comm/group.h"
#include "device/stream.h"

namespace mtrain::parallel {

// Gradients and parameters travel on streams of their own, so that neither waits for the other.
struct DataGroups {
  int rank = 0, size = 1;  // of the replicas that read different samples
  Group all;               // dp_cp: over which gradients are summed; on `grad_stream`
  Group shards;            // dp_shard_cp: ranks that own different parts; on `grad_stream`
  Group replicas;          // dp_replicate: ranks that own the same part; on `grad_stream`
  Group gather;            // the ranks of `shards` again; on `param_stream`
  // What is not needed is null: param_stream where nothing is sharded, both for one rank.
  Stream *compute = nullptr, *grad_stream = nullptr, *param_stream = nullptr;
};

}  // namespace mtrain::parallel
