// Makes from the plan the groups of ranks of each parallelism, and the implementations that replace
// those of a single rank. All ranks call these functions in the same order, since the ranks of a
// group connect when it is made.
#pragma once
#include "comm/world.h"
#include "device/device.h"
#include "model/gpt.h"
#include "model/model_impls.h"
#include "parallel/data/data_parallel.h"
#include "plan/run_plan.h"

namespace mtrain::parallel {

// Makes the groups of tensor, context and expert parallelism, and the implementations that use
// them.
model::ModelImpls apply_parallelism(comm::World& world, Device& device, const RunPlan& plan);

// Lets all ranks of `world` share every layer of the model by tensor parallelism, for forwards of
// any number of tokens. Throws UserError if the ranks do not divide its heads and widths.
model::ModelImpls share_layers(comm::World& world, Device& device, const spec::ModelSpec& model);

// This rank among the context-parallel ranks, which share every sequence. The number of tokens of
// each sequence is a multiple of `multiple`.
struct SequenceShare {
  int64_t rank = 0, ranks = 1, multiple = 1;
};
SequenceShare sequence_share(const comm::World& world, const RunPlan& plan);

// Makes the groups of data parallelism.
DataGroups data_groups(comm::World& world, Device& device, const RunPlan& plan);

// Makes the group of the ranks that have this rank's layers, or parts of them.
Group stage_group(comm::World& world, const RunPlan& plan);

// Gives the declared parameters memory, and returns the data-parallel strategy that moves them
// between ranks. `quantizer` is that of data_parallel().
std::unique_ptr<model::DataParallel> materialize_params(model::ParamStore& params, Stream& compute,
                                                        const DataGroups& groups,
                                                        const RunPlan& plan,
                                                        model::Quantizer* quantizer);

}  // namespace mtrain::parallel
