// `mtrain plan --advice`: the sizing guide beside predictions.
#pragma once
#include "cluster_plan.h"
#include "predict/guide_advice.h"
#include "predict/launch_costs.h"

namespace mtrain {

// Returns the advice for a terminal, or as JSON with all figures in seconds and bytes.
std::string plan_advice(const ClusterPlan& planned, const predict::LaunchCosts& costs,
                        const predict::LayoutSearch& search, bool json, int width);

}  // namespace mtrain
