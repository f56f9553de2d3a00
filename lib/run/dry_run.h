// What a job would be, without running it: layout, groups, memory, pipeline, overlap.
#pragma once
#include <string>

#include "plan/run_plan.h"

namespace mtrain::run {

// A report of `width` columns on a plan with a vocabulary. Takes milliseconds, whatever the world.
std::string dry_run_report(const RunPlan& plan, int width);

}  // namespace mtrain::run
