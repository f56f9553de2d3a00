// How the CPUs of a run multiply two bf16 operands. The choice is made at the start of a run, is
// the same on all ranks, is saved in its checkpoints, and is repeated by every run that goes on
// from one. GPUs and runs in fp32 have nothing to choose.
#pragma once
#include "comm/host_collectives.h"
#include "device/device.h"
#include "plan/run_plan.h"
#include "storage/state.h"

namespace mtrain::run {

// Sets the device to the arithmetic that is fastest on rank 0. It is fp32 arithmetic where the CPU
// of another rank lacks that one, or where debug.deterministic asks for what all CPUs can do. All
// ranks call it.
void choose_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                            const RunPlan& plan);

// Sets the device to what a checkpoint's state says. Where a rank's CPU lacks it, the choice is
// made anew, and rank 0 warns of it. All ranks call it.
void restore_bf16_arithmetic(Device& device, const comm::HostCollectives& control,
                             const RunPlan& plan, const storage::TrainState& state);
void save_bf16_arithmetic(const Device& device, const RunPlan& plan, storage::TrainState& state);

}  // namespace mtrain::run
