// Builds a Trainer from a plan, ready for its first step.
#pragma once
#include <memory>

#include "train/trainer.h"

namespace mtrain::train {

// The plan must have a vocabulary. The initial weights follow from train.seed and are the same
// under every layout. All ranks must call it, since it creates groups.
Trainer build_trainer(Device& device, RunPlan plan, std::shared_ptr<const data::Dataset> data,
                      comm::World world = comm::World::alone());

}  // namespace mtrain::train
