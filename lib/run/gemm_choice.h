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
// ranks call it. The others wait in a collective meanwhile, which gives up after `timeout_s`: the
// measuring takes a quarter of that at most, and kMostMeasured GEMMs, those first that cost most on
// a rank. What is left unmeasured keeps the algorithm that the library names first.
constexpr size_t kMostMeasured = 128;
void choose_gemms(ops::GemmTuner& tuner, const comm::HostCollectives& control, double timeout_s);

// Uses the choices of a checkpoint's state, if it has any.
void restore_gemms(ops::GemmTuner& tuner, const storage::TrainState& state);
void save_gemms(ops::GemmTuner& tuner, storage::TrainState& state);

}  // namespace mtrain::run
