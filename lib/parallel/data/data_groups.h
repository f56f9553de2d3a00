// The groups and streams of data parallelism on one rank.
#pragma once
#include "comm/group.h"
#include "device/stream.h"
#include "model/param/parameters.h"

namespace mtrain::parallel {

// The ranks that share the gradients and the parameters of a unit.
struct UnitGroups {
  Group all;       // the ranks whose gradients are summed; uses `grad_stream`
  Group shards;    // ranks that own different parts; uses `grad_stream`
  Group replicas;  // ranks that own the same part; uses `grad_stream`
  Group gather;    // the same ranks as `shards`; uses `param_stream`
};

// Gradients and parameters travel on separate streams, since neither must wait for the other.
struct DataGroups {
  int rank = 0, size = 1;  // rank and number of the replicas that read different samples
  UnitGroups dense;        // dp_cp, dp_shard_cp, dp_replicate
  // For units of experts, if these are distributed over ep, or if the ranks of tp have undivided
  // ones: ep_shard, dp_replicate.
  UnitGroups experts;
  // param_stream is null if nothing is sharded, and both are null for a single rank.
  Stream *compute = nullptr, *grad_stream = nullptr, *param_stream = nullptr;

  bool alone() const { return !dense.all; }
  const UnitGroups& of(model::UnitKind kind) const {
    return experts.all && kind == model::UnitKind::experts ? experts : dense;
  }
  const UnitGroups& of(const model::ParamUnit& unit) const { return of(unit.id.kind); }
};

}  // namespace mtrain::parallel
