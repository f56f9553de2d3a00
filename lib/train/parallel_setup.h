// From the recipe's distributed, ddp, comm_overlap and mixed_precision sections to a data-parallel
// strategy, and to what parallelism puts in the place of the model's plain parts.
#pragma once
#include "comm/world.h"
#include "device/device.h"
#include "model/parts.h"
#include "parallel/data_parallel.h"
#include "plan/layout.h"
#include "recipe/recipe.h"

namespace mtrain {

Mesh mesh_of(const Layout& layout);
ModelParts model_parts(World& world, Device& device, const Recipe& recipe);

// This rank among those that share every sequence. A share of tokens is a multiple of `multiple`.
struct SequenceShare {
  int64_t rank = 0, ranks = 1, multiple = 1;
};
SequenceShare sequence_share(const World& world, const Recipe& recipe);

DataGroups data_groups(World& world, Device& device, const Recipe& recipe);
// `first_stage_units`: of the rank's first stage, which come first.
DataParallelOptions data_parallel_options(const Recipe& recipe, int world,
                                          size_t first_stage_units);

}  // namespace mtrain
