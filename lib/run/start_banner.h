// The rows of the banner that a run prints before its first step.
#pragma once
#include <cstdint>
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

// Returns what train.epochs makes: "40: 2 epochs"; empty if the recipe gives steps.
std::string epochs_text(const plan::TrainOptions& train);

// What a run begins with.
struct RunStart {
  int64_t steps_done = 0;
  int64_t samples = 0;    // of an epoch of the data
  std::string from = {};  // the checkpoint or folder of its weights; empty: they are random
};

// Returns the rows of the plan, and those of this run: what is trained, data, steps to do, device,
// ranks and overlap.
std::vector<observe::BannerRow> banner_rows(train::Trainer& trainer, const RunStart& start);

// Returns what the start of a run has measured, once weights and arithmetic are known. `peak_flops`
// is the fp32 FLOP/s of the device; 0: unknown. Empty: nothing is measured.
std::string measured_text(train::Trainer& trainer, double peak_flops);

}  // namespace mtrain::run
