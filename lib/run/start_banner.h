// The rows of the banner that a run prints before its first step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "observe/banner.h"
#include "plan/run_plan.h"
#include "train/trainer.h"

namespace mtrain::run {

// Returns the rows that depend only on the plan: model, size, precision, batch, recomputation,
// memory of the rank that needs most, and CUDA graphs if they are known. `device_memory` is the
// number of bytes of an open device; the row of the memory reports if the plan exceeds them. 0: not
// known.
std::vector<observe::BannerRow> plan_rows(const RunPlan& plan, double device_memory = 0);

// The rows of the overlap table, each "feature: requested -> effective, reason". They are of three
// kinds: features that hide communication in this run, features that the recipe requests by name
// and that are off, and others.
enum class OverlapRows { active, asked_and_off, others };
std::vector<observe::BannerRow> overlap_rows(const plan::Overlap& overlap, OverlapRows which);

// Returns the steps that result from train.epochs: "40: 2 epochs"; empty if the recipe gives steps.
std::string epochs_text(const plan::TrainOptions& train);

// The initial state of a run.
struct RunStart {
  int64_t steps_done = 0, samples_done = 0;
  int64_t last_step = 0;  // of the run
  int64_t samples = 0;    // samples in an epoch of the data
  std::string from = {};  // the checkpoint or folder of the initial weights; empty: random weights
  std::string local_copies = {};  // where they are; empty if the recipe asks for none
  std::string saving = {};        // whether training continues during saves; empty: there is none
};

// Returns the rows of the plan, and those of this run: the trained model, data, steps to do,
// device, ranks and overlap.
std::vector<observe::BannerRow> banner_rows(train::Trainer& trainer, const RunStart& start);

// Returns a text about the measurements at the start of a run, once weights and arithmetic are
// known. `peak_flops` is the fp32 FLOP/s of the device; 0: unknown. Empty if nothing is measured.
std::string measured_text(train::Trainer& trainer, double peak_flops);

}  // namespace mtrain::run
