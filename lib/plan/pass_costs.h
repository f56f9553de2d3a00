// Estimates what the parts of a pass cost, from FLOPs and bytes alone: nothing is measured, so that
// all ranks that share exchanges derive the same order from it.
#pragma once
#include "schedule/pass_costs.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

// Returns the costs in layers of the model, at rates that are assumed for the recipe's hardware.
// All in `plan` but its memory and pipeline options must be set.
schedule::PassCosts pass_costs(const recipe::Recipe& recipe, const RunPlan& plan);

}  // namespace mtrain::plan
