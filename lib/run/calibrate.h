// Measures this machine for the planner (mtrain calibrate): what the launches of real training
// steps take, and communication between the ranks of a job.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "device/device.h"
#include "launch/job.h"
#include "plan/calibration.h"
#include "plan/machine.h"
#include "plan/run_plan.h"

namespace mtrain::run {

struct CalibrateJob {
  launch::Job job;
  plan::Machine machine;
  std::string output, build;
  double seconds = 120;
  int64_t threads = 0;           // of a CPU rank; 0: its share of the host's cores
  std::vector<RunPlan> further;  // for the job's ranks; their steps are measured, too
};

// Measures on an open device for about so many seconds. All ranks of the world call it, and train
// at the same time; rank 0 gets the result, the others an empty one.
//
// Each rank trains the models `alone`, on made-up data, and then all ranks together those that they
// `share`. Rounds visit all models in turn. A launch that runs while its rank communicates counts
// for the slow-down, and otherwise for the times of launches.
plan::Calibration measure_machine(Device& device, comm::World& world, double seconds,
                                  const std::vector<RunPlan>& alone,
                                  const std::vector<RunPlan>& shared);

// Opens the device, connects the ranks, measures, and writes the file on rank 0. Returns what was
// measured; empty on other ranks.
plan::Calibration calibrate(const CalibrateJob& job);

}  // namespace mtrain::run
