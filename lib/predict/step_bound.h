// How fast a step can be at best, in closed form. Searches for layouts leave out what is slower at
// best than what they have found.
#pragma once
#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

struct StepBound {
  // At most what StepModel predicts: the GEMMs and attention of the pipeline rank that has most,
  // what it waits for in the pipeline, and communication of tensor parallelism that nothing hides.
  double seconds = 0;
  // About what StepModel predicts: also passes over memory, and data parallelism.
  double guess = 0;
};

// Reads only what plan::change_layout() sets. Takes microseconds.
StepBound step_bound(const RunPlan& plan, const plan::Cluster& cluster, const LaunchCosts& costs);

}  // namespace mtrain::predict
