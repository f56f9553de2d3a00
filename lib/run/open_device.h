// From the plan to a rank's device and world.
#pragma once
#include <memory>

#include "comm/world.h"
#include "device/device.h"
#include "launch/job.h"
#include "plan/run_plan.h"

namespace mtrain::run {

// The GPU of this rank's number on its host, or its share of the host's cores.
std::unique_ptr<Device> open_device(const plan::DevicePlan& plan, const launch::Job& job);

// Returns when all ranks have met. UserError where another rank runs another recipe.
comm::World open_world(const RunPlan& plan, const launch::Job& job);

}  // namespace mtrain::run
