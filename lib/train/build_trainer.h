// Builds from a plan a Trainer that is ready for its first step.
#pragma once
#include <memory>

#include "train/trainer.h"

namespace mtrain::train {

// The plan must have a vocabulary. Weights are initialised from train.seed, alike on every rank of
// `world`. All ranks call it, since groups are made in it.
Trainer build_trainer(Device& device, RunPlan plan, std::shared_ptr<const data::Dataset> data,
                      comm::World world = comm::World::alone());

}  // namespace mtrain::train
