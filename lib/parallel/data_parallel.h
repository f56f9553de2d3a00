// A data-parallel strategy over several ranks: a parameters' half and a gradients' half.
#pragma once
#include <memory>

#include "model/data_parallel.h"
#include "parallel/grad_side.h"
#include "parallel/param_side.h"

namespace mtrain {

enum class Shard { nothing, optimizer, gradients, parameters };  // each with those before it

struct DataParallelOptions {
  Shard shard = Shard::nothing;
  ReduceOptions reduce;
  bool overlap_grad_reduce = true;
  int64_t bucket_size = 40'000'000;  // parameters reduced at once; units are cut for smaller ones
  bool defer_reduce = true;          // sharded gradients: reduce with the last micro-batch only
  GatheredParamsOptions gather_updated;  // of whole parameters, each rank's part of them updated
  ShardedParamsOptions gather;           // of sharded parameters
};

// How parameters must be materialized for data_parallel().
Sharding sharding_of(const DataGroups& groups, const DataParallelOptions& options);

// Of materialized parameters. Their values must be told (`updated`) before they are used.
std::unique_ptr<DataParallel> data_parallel(ParamStore& params, const DataGroups& groups,
                                            const DataParallelOptions& options);

}  // namespace mtrain
