// Ranks on GPUs agree on the cuBLASLt algorithms of their GEMMs. Rank 0 measures after the first
// step of a run, all ranks use its choices, and checkpoints store them. With debug.deterministic,
// and on CPUs, nothing is measured.
#pragma once
#include <memory>

#include "comm/host_collectives.h"
#include "ops/tuning.h"
#include "plan/run_plan.h"
#include "storage/state.h"

namespace mtrain::run {

// Returns null if this run chooses nothing.
std::unique_ptr<ops::GemmTuner> gemm_tuner(Device& device, const RunPlan& plan);

// Measures on rank 0 the GEMMs that any rank has run without a choice, and sets the choices on all
// ranks. All ranks must call it. Meanwhile the others wait in a collective with the timeout
// `timeout_s`. The measurement therefore takes at most a quarter of that, and at most kMaxMeasured
// GEMMs, beginning with each rank's most expensive ones. GEMMs that are not measured keep the
// library's first algorithm.
constexpr size_t kMaxMeasured = 128;
void choose_gemms(ops::GemmTuner& tuner, const comm::HostCollectives& control, double timeout_s);

// Uses the choices of a checkpoint's state, if it has any.
void restore_gemms(ops::GemmTuner& tuner, const storage::TrainState& state);
void save_gemms(ops::GemmTuner& tuner, storage::TrainState& state);

}  // namespace mtrain::run
