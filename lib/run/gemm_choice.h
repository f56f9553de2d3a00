// Ranks on GPUs agree here on the algorithms of cuBLASLt that compute their GEMMs. Rank 0 measures
// after the first step of a run, all ranks take its choices, and checkpoints keep them. With
// debug.deterministic, and on CPUs, nothing is measured.
#pragma once
#include <memory>

#include "comm/host_collectives.h"
#include "ops/tuning.h"
#include "plan/run_plan.h"
#include "storage/state.h"

namespace mtrain::run {

// Returns null if this run chooses nothing.
std::unique_ptr<ops::GemmTuner> gemm_tuner(Device& device, const RunPlan& plan);

// Measures on rank 0 what any rank has run without a choice, and gives all ranks its choices. All
// ranks call it.
void choose_gemms(ops::GemmTuner& tuner, const comm::HostCollectives& control);

// Uses the choices of a checkpoint's state, if it has any.
void restore_gemms(ops::GemmTuner& tuner, const storage::TrainState& state);
void save_gemms(ops::GemmTuner& tuner, storage::TrainState& state);

}  // namespace mtrain::run
