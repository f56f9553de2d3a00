// Opens a rank's device, and its connection to the other ranks, by the plan.
#pragma once
#include <memory>

#include "comm/world.h"
#include "device/device.h"
#include "launch/job.h"
#include "plan/run_plan.h"

namespace mtrain::run {

// Opens the GPU whose number is the rank's number on its host, or a CPU device with the rank's
// share of the host's cores.
std::unique_ptr<Device> open_device(const plan::DevicePlan& plan, const launch::Job& job);

// Returns when all ranks are connected. Throws UserError if another rank has another recipe.
comm::World open_world(const RunPlan& plan, const launch::Job& job);

}  // namespace mtrain::run
