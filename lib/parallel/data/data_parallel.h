// A data-parallel strategy over several ranks: a parameters' half and a gradients' half.
#pragma once
#include <memory>

#include "model/data_parallel.h"
#include "parallel/data/grad_sync.h"
#include "parallel/data/param_sync.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain::parallel {

// How parameters must be materialized for data_parallel().
model::Sharding sharding_of(const DataGroups& groups, const plan::DataParallelOptions& options);

// The parameters are materialized, and the units of the rank's first stage come first. Their values
// must be told (`updated`) before they are used.
std::unique_ptr<model::DataParallel> data_parallel(model::ParamStore& params,
                                                   const DataGroups& groups,
                                                   const plan::DataParallelOptions& options,
                                                   size_t first_stage_units);

}  // namespace mtrain::parallel
