// Estimates what the parts of a pass cost, from FLOPs and bytes alone: nothing is measured, so that
// all ranks that share exchanges derive the same order from it. hardware.gpu is a rank's own GPU if
// the recipe names none, so that a start compares the costs of all ranks (run/rank_consistency.h).
#pragma once
#include <string>

#include "schedule/pass_costs.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

// Returns the costs in layers of the model, at rates that are assumed for the recipe's hardware.
// All in `plan` but recompute.cheap, memory and pipeline.pair_costs must be set.
schedule::PassCosts pass_costs(const recipe::Recipe& recipe, const RunPlan& plan);

// Returns all costs as a text that is the same for the same bits alone.
std::string print_pass_costs(const schedule::PassCosts& costs);

}  // namespace mtrain::plan
