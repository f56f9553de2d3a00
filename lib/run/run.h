// A training from start to end: device, data, banner, steps, evaluations, checkpoints, and what the
// user sees of them.
#pragma once
#include "launch/job.h"
#include "plan/run_plan.h"

namespace mtrain::run {

struct RunOptions {
  launch::Job job;       // this rank among all; alone by default
  bool profile = false;  // print the time of each operation at the end
};

// Runs the plan, which has a vocabulary and is for job.size ranks. Returns when train.steps are
// done or a signal asked for an early, saved end. Throws UserError, RunError.
void run_training(const RunPlan& plan, const RunOptions& options);

}  // namespace mtrain::run
