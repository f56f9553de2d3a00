// What a run says of itself before the first step.
#pragma once
#include <string>
#include <vector>

#include "observe/banner.h"
#include "plan/run_plan.h"
#include "train/trainer.h"

namespace mtrain::run {

// What follows from the plan alone: model, size, precision, batch, recomputation, and memory of the
// rank that needs most.
std::vector<observe::BannerRow> plan_rows(const RunPlan& plan);

// The same, and what this run adds: steps to do, device, overlap.
std::vector<observe::BannerRow> banner_rows(train::Trainer& trainer, double peak_flops);

}  // namespace mtrain::run
