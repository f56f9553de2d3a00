// Runs a training from start to end on one rank: device, data, banner, steps, evaluations,
// checkpoints, and the log of them.
#pragma once
#include "launch/job.h"
#include "plan/run_plan.h"

namespace mtrain::run {

struct RunOptions {
  launch::Job job;       // which of the ranks this process is; by default the only one
  bool profile = false;  // print the time of each operation at the end
};

// Runs the plan, which must have a vocabulary and be made for job.size ranks. Returns when
// train.steps are done, or earlier at a signal, train.exit_interval or train.exit_duration_in_mins.
// Throws UserError, RunError or CommError.
void run_training(const RunPlan& plan, const RunOptions& options);

}  // namespace mtrain::run
