// Runs a training from start to end on one rank: device, data, banner, steps, evaluations,
// checkpoints, and the log of them.
#pragma once
#include <functional>
#include <string>

#include "launch/job.h"
#include "plan/meeting_plan.h"
#include "plan/run_plan.h"

namespace mtrain::run {

struct RunOptions {
  launch::Job job;                    // the rank of this process; by default the only one
  bool profile = false;               // print the time of each operation at the end
  bool verbose = false;               // print the communication by kind at the end
  std::string continue_command = {};  // printed if the run ends early; empty: unknown
};

// Returns the plan. May open a tokenizer and the data for this. If that takes long it calls `alive`
// after each part.
using MakePlan = std::function<RunPlan(const std::function<void()>& alive)>;

// Runs a training on job.size ranks, which meet as `meeting` says. `make_plan` is called once, when
// the ranks are connected: a file that one rank cannot read then ends all ranks immediately.
// Returns when train.steps are done, or earlier at a signal, train.exit_interval or
// train.exit_duration_in_mins. Throws UserError, RunError or CommError.
void run_training(const plan::MeetingPlan& meeting, const MakePlan& make_plan,
                  const RunOptions& options);
// Runs a plan that is made already.
void run_training(const RunPlan& plan, const RunOptions& options);

}  // namespace mtrain::run
