// From the plan to the groups of ranks that the strategies and parallelisms talk in, and to what
// parallelism puts in the place of the model's plain parts.
#pragma once
#include "comm/world.h"
#include "device/device.h"
#include "model/parts.h"
#include "parallel/data_parallel.h"
#include "plan/run_plan.h"

namespace mtrain {

ModelParts model_parts(World& world, Device& device, const Recipe& recipe, const RunPlan& plan);

// This rank among those that share every sequence. A share of tokens is a multiple of `multiple`.
struct SequenceShare {
  int64_t rank = 0, ranks = 1, multiple = 1;
};
SequenceShare sequence_share(const World& world, const Recipe& recipe, const RunPlan& plan);

DataGroups data_groups(World& world, Device& device, const RunPlan& plan);

}  // namespace mtrain
