// A data-parallel strategy over several ranks: a parameters' half and a gradients' half.
#pragma once
#include <memory>

#include "model/data_parallel.h"
#include "parallel/data/grad_sync.h"
#include "parallel/data/param_sync.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain {

// How parameters must be materialized for data_parallel().
Sharding sharding_of(const DataGroups& groups, const DataParallelOptions& options);

// The parameters are materialized, and the units of the rank's first stage come first. Their values
// must be told (`updated`) before they are used.
std::unique_ptr<DataParallel> data_parallel(ParamStore& params, const DataGroups& groups,
                                            const DataParallelOptions& options,
                                            size_t first_stage_units);

}  // namespace mtrain
