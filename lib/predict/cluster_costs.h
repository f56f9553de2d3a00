// Chooses what launches cost on a cluster.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

// The calibration that the cluster file names, otherwise data sheets with the constants of its
// stack, or with the default ones. Reports the mistakes of these files, and a calibration of
// another kind of device. Ready stacks are in these folders of recipes. The plan decides which link
// its ranks emulate (comm.link), and for how many threads and ranks a CPU's times must be.
std::unique_ptr<const LaunchCosts> costs_for(const plan::Cluster& cluster, const RunPlan& plan,
                                             const std::vector<std::string>& recipe_folders,
                                             Diagnostics& diagnostics);

}  // namespace mtrain::predict
