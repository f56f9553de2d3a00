// Made-up data with the shapes of a plan's samples. A prediction trains on it, since only the
// shapes decide what a step costs.
#pragma once
#include <memory>

#include "data/dataset/dataset.h"
#include "plan/run_plan.h"

namespace mtrain::predict {

// Every sample has the plan's length, and every token has a loss. Where documents are sequences of
// their own, a sample is one document. Its attention then costs the most that a sample's can.
std::shared_ptr<const data::Dataset> even_data(const RunPlan& plan);

}  // namespace mtrain::predict
