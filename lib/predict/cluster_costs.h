// Chooses what launches cost on a cluster.
#pragma once
#include <memory>

#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

// The calibration that the cluster file names, otherwise data sheets with the default constants.
// Reports the mistakes of that file, and what the cluster names and cannot be used. The plan
// decides which link its ranks emulate (comm.link), and for how many threads a CPU rank is.
std::unique_ptr<const LaunchCosts> costs_for(const plan::Cluster& cluster, const RunPlan& plan,
                                             Diagnostics& diagnostics);

}  // namespace mtrain::predict
