// From the plan to what the model takes.
#pragma once
#include "model/gpt.h"
#include "plan/run_plan.h"

namespace mtrain {

// `tp` is the number of ranks that the vocabulary's rows are spread over.
GptConfig gpt_config(const ModelShape& model, int64_t tp = 1);
GptConfig gpt_config(const RunPlan& plan);  // for the plan's tp
Recompute recompute_policy(const RecomputeOptions& recompute);

}  // namespace mtrain
