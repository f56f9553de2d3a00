// Estimates the costs of the parts of a pass from FLOPs and bytes. Nothing is measured, because all
// ranks that share exchanges must derive the same order from the costs. If the recipe names no
// hardware.gpu, each rank uses its own GPU. Therefore the ranks compare their costs at the start
// (run/rank_consistency.h).
#pragma once
#include <string>

#include "schedule/pass_costs.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

// Returns the costs of the model's layers in seconds, at rates that are assumed for the recipe's
// hardware. All fields of `plan` but pass_costs, recompute.cheap, memory and pipeline.pair_costs
// must be set.
schedule::PassCosts pass_costs(const recipe::Recipe& recipe, const RunPlan& plan);

// Prints all costs exactly: two texts are equal only if all costs are, bit for bit.
std::string print_pass_costs(const schedule::PassCosts& costs);

}  // namespace mtrain::plan
