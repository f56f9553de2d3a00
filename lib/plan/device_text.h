// Describes the device that a plan is for, and whether the plan fits its memory.
#pragma once
#include <string>

#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Returns a phrase such as "h100 for each rank (hardware.gpu), 8 in a node" or "CPU, 4 threads for
// each rank".
std::string device_text(const Recipe& recipe, const RunPlan& plan);

// Returns a phrase such as "61.2 GiB of 74.5 GiB planned: fits"; empty if the memory is not known.
// CPU ranks share the host's memory. It counts as known only if the host has a core for each rank.
// The plan must have a vocabulary.
std::string fit_text(const Recipe& recipe, const RunPlan& plan);
// Whether the plan fits; true if the memory is not known.
bool fits(const Recipe& recipe, const RunPlan& plan);

}  // namespace mtrain::plan
