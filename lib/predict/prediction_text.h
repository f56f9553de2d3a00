// Predictions as text for a terminal.
#pragma once
#include <string>

#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/prediction.h"

namespace mtrain::predict {

// Returns the figures of a step, the memory of the pipeline's ranks, where the time goes, and which
// communication is hidden. `width` 0: lines have no limit.
std::string prediction_text(const Prediction& prediction, const RunPlan& plan,
                            const plan::Cluster& cluster, int width);

}  // namespace mtrain::predict
