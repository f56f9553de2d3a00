// The models that a calibration trains, and their layouts.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/machine.h"
#include "plan/run_plan.h"

namespace mtrain::run {

// Plans of one rank: a spread of widths, lengths, heads, vocabularies and micro-batch sizes, in
// fp32 and bf16, with AdamW and Muon, dense and with experts; and what each rank computes in the
// layouts of `world` ranks.
std::vector<RunPlan> calibration_models(const plan::Machine& machine, int64_t world);

// Plans of all ranks: each parallelism over all of them, where it can have so many.
std::vector<RunPlan> calibration_layouts(const plan::Machine& machine, int64_t world);

}  // namespace mtrain::run
