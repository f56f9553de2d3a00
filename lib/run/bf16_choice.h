// The arithmetic in which the CPUs of a run multiply two bf16 operands. It is chosen at the start
// of a run, is the same on all ranks, and is saved in the checkpoints; a run that resumes from a
// checkpoint takes the saved one. GPUs and runs in fp32 have nothing to choose.
#pragma once
#include "comm/host_collectives.h"
#include "device/device.h"
#include "plan/run_plan.h"
#include "storage/state.h"

namespace mtrain::run {

// Makes the device use the arithmetic that is fastest on rank 0. If the CPU of another rank lacks
// it, or debug.deterministic asks for one that all CPUs have, the device uses fp32 arithmetic. All
// ranks call it.
void choose_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                            const RunPlan& plan);

// Makes the device use the arithmetic that a checkpoint's state names. If the CPU of a rank lacks
// it, chooses anew, and rank 0 warns. All ranks call it.
void restore_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                             const RunPlan& plan, const storage::TrainState& state);
// Writes the choice into the state of a checkpoint.
void save_bf16_arithmetic(const Device& device, const RunPlan& plan, storage::TrainState& state);

}  // namespace mtrain::run
