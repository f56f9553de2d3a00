// The arithmetic in which the CPUs of a run multiply two bf16 operands. It is chosen at the start
// of a run, is the same on all ranks, and is saved in the checkpoints. A run that resumes from a
// checkpoint uses the saved one. GPUs and runs in fp32 have no such choice.
#pragma once
#include "comm/host_collectives.h"
#include "device/device.h"
#include "plan/run_plan.h"
#include "storage/state.h"

namespace mtrain::run {

// Makes the device use the arithmetic that is fastest on rank 0. The device uses fp32 arithmetic
// instead if the CPU of another rank lacks it, or if debug.deterministic requires one that all CPUs
// have. All ranks must call it.
void choose_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                            const RunPlan& plan);

// Makes the device use the arithmetic of a checkpoint's state. Makes a new choice, with a warning
// of rank 0, if the CPU of a rank lacks it or debug.deterministic forbids it. All ranks must call
// it.
void restore_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                             const RunPlan& plan, const storage::TrainState& state);
// Writes the choice into the state of a checkpoint.
void save_bf16_arithmetic(const Device& device, const RunPlan& plan, storage::TrainState& state);

}  // namespace mtrain::run
