// How the CPUs of a run multiply two bf16 operands: chosen at the start of a run, the same on all
// ranks, saved in its checkpoints and repeated by every run that goes on from one. GPUs and runs in
// fp32 have nothing to choose.
#pragma once
#include "storage/state.h"
#include "comm/control.h"
#include "device/device.h"
#include "recipe/recipe.h"

namespace mtrain {

// Tells `device` the way that is fastest on rank 0, or fp32 arithmetic where the CPU of another
// rank lacks that or where debug.deterministic asks for what all CPUs can do. All ranks call it.
void choose_bf16_arithmetic(Device& device, const Control& control, const Recipe& recipe);

// The same from the state of a checkpoint. Where a rank's CPU lacks what was saved, the choice is
// made anew, and rank 0 warns of it. All ranks call it.
void restore_bf16_arithmetic(Device& device, const Control& control, const Recipe& recipe,
                             const TrainState& state);
void save_bf16_arithmetic(const Device& device, const Recipe& recipe, TrainState& state);

}  // namespace mtrain
