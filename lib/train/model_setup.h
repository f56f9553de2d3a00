// Makes from the plan the settings that the model takes.
#pragma once
#include "model/gpt.h"
#include "plan/run_plan.h"

namespace mtrain::train {

// `tp` is the number of ranks that the vocabulary's rows are spread over.
model::GptConfig gpt_config(const plan::ModelShape& model, int64_t tp = 1);
model::GptConfig gpt_config(const RunPlan& plan);  // for the plan's tp
model::Recompute recompute_policy(const plan::RecomputeOptions& recompute);

}  // namespace mtrain::train
