// Tells what a job would be without running it: layout, groups, memory, pipeline and overlap.
#pragma once
#include <string>

#include "plan/run_plan.h"

namespace mtrain::run {

// Returns a report on the plan, whose vocabulary must be known. The table at its head is `width`
// columns wide. Takes milliseconds, whatever the size of the world.
std::string dry_run_report(const RunPlan& plan, int width);

}  // namespace mtrain::run
