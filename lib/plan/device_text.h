// Describes the device that a plan is for, and whether the plan fits its memory.
#pragma once
#include <string>

#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Returns "h100 for each rank (hardware.gpu), 8 in a node", or what CPUs the ranks share.
std::string device_text(const Recipe& recipe, const RunPlan& plan);

// Returns "61.2 GiB of 74.5 GiB planned: fits"; empty if the device's memory is not known. Ranks on
// CPUs count together if this host has a core for each. The plan's vocabulary must be known.
std::string fit_text(const Recipe& recipe, const RunPlan& plan);
// Whether the plan fits; true if the memory is not known.
bool fits(const Recipe& recipe, const RunPlan& plan);

}  // namespace mtrain::plan
