// From the plan to the groups of ranks that parallelism talks in, and to what it puts in the place
// of the model's plain parts. All ranks call these functions in one order, since ranks meet when a
// group is made.
#pragma once
#include "comm/world.h"
#include "device/device.h"
#include "model/gpt.h"
#include "model/model_impls.h"
#include "parallel/data/data_parallel.h"
#include "plan/run_plan.h"

namespace mtrain::parallel {

model::ModelImpls model_impls(comm::World& world, Device& device, const RunPlan& plan);

// This rank among those that share every sequence. A share of tokens is a multiple of `multiple`.
struct SequenceShare {
  int64_t rank = 0, ranks = 1, multiple = 1;
};
SequenceShare sequence_share(const comm::World& world, const RunPlan& plan);

DataGroups data_groups(comm::World& world, Device& device, const RunPlan& plan);

// Gives the declared parameters memory, and returns who moves them between data-parallel ranks.
std::unique_ptr<model::DataParallel> materialize(model::ParamStore& params, Stream& compute,
                                                 const DataGroups& groups, const RunPlan& plan,
                                                 const model::Gpt& first_stage);

}  // namespace mtrain::parallel
