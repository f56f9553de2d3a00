// What a run says of itself before the first step.
#pragma once
#include <string>
#include <vector>

#include "observe/banner.h"
#include "plan/run_plan.h"
#include "train/trainer.h"

namespace mtrain {

// What follows from the recipe alone: model, size, precision, batch, recomputation, memory of one
// rank (of the fullest, with a pipeline).
std::vector<BannerRow> plan_rows(const Recipe& recipe, const RunPlan& plan, int64_t vocab);

// The same, and what this run adds: steps to do, device, overlap.
std::vector<BannerRow> banner_rows(Trainer& trainer, const Recipe& recipe, double peak_flops);

}  // namespace mtrain
