// Chooses what launches cost on a cluster.
#pragma once
#include <memory>

#include "plan/cluster.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

// Data sheets with the default constants, unless the cluster file names something better. Reports
// what it names and cannot be used.
std::unique_ptr<const LaunchCosts> costs_for(const plan::Cluster& cluster,
                                             Diagnostics& diagnostics);

}  // namespace mtrain::predict
