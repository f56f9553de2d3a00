// A data-parallel strategy over several ranks. It consists of a ParamSync and a GradSync.
#pragma once
#include <memory>

#include "model/data_parallel.h"
#include "parallel/data/grad_sync.h"
#include "parallel/data/param_sync.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain::parallel {

// Returns the sharding with which a unit must be materialized for data_parallel().
model::Sharding sharding_of(const DataGroups& groups, const model::ParamUnit& unit,
                            const plan::DataParallelOptions& options);

// The parameters must be materialized. Call updated() for every unit once it has values, before the
// first use. `quantizer` must be materialized before that; it is null without 8-bit GEMMs.
std::unique_ptr<model::DataParallel> data_parallel(model::ParamStore& params,
                                                   const DataGroups& groups,
                                                   const plan::DataParallelOptions& options,
                                                   model::Quantizer* quantizer);

}  // namespace mtrain::parallel
