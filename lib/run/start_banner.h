// The rows of the banner that a run prints before its first step.
#pragma once
#include <string>
#include <vector>

#include "observe/banner.h"
#include "plan/run_plan.h"
#include "train/trainer.h"

namespace mtrain::run {

// Returns the rows that follow from the plan alone: model, size, precision, batch, recomputation,
// memory of the rank that needs most, and CUDA graphs if they are known.
std::vector<observe::BannerRow> plan_rows(const RunPlan& plan);

// The rows of the overlap table, each "feature: asked -> effective, why": features that hide
// communication in this run, those that the recipe asks for by name and that are off, and others.
enum class OverlapRows { active, asked_and_off, others };
std::vector<observe::BannerRow> overlap_rows(const plan::Overlap& overlap, OverlapRows which);

// Returns the rows of the plan, and those of this run: steps to do, device, ranks and overlap.
// `peak_flops` is the measured fp32 FLOP/s of the device; 0: unknown.
std::vector<observe::BannerRow> banner_rows(train::Trainer& trainer, double peak_flops);

}  // namespace mtrain::run
