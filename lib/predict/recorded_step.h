// Records what one rank enqueues in a training step, without the other ranks and without their
// devices. The rank's Trainer runs as in a training, on a recording device (device/device.h): names
// and sizes of launches, and the memory, are therefore the training's own.
#pragma once
#include <array>
#include <memory>
#include <set>
#include <string>

#include "data/dataset/dataset.h"
#include "device/allocator.h"
#include "device/recording/records.h"
#include "plan/run_plan.h"

namespace mtrain::predict {

struct RecordedStep {
  device::Records records;  // of one step, from reading its batch to its update
  // Bytes of the step's live buffers, by category and in total. On a device that is like a GPU,
  // what kernels allocate within launches is not included.
  std::array<device::MemoryUsage, device::kMemoryCategories> memory{};
  device::MemoryUsage total;
};

// Returns why the step of a plan cannot be recorded; empty: it can.
std::string recording_obstacle(const RunPlan& plan);

// Whether a rank's stages enqueue the same in their actions without its other stages, apart from
// the stage before.
bool can_skip_stages(const RunPlan& plan);

// Records the second step of rank `rank` of the plan's world; later steps are like it. The plan
// must have a vocabulary and no obstacle. Tokens go evenly to all experts. Work that the plan
// captures in graphs is recorded launch by launch.
//
// `skipped`: stages of the rank whose passes, messages and reductions are not recorded. Other
// actions are recorded as in a full step, if can_skip_stages(); the rank must keep a stage.
RecordedStep record_step(RunPlan plan, int rank, const std::set<int64_t>& skipped = {});
// Does the same with other data than even_data().
RecordedStep record_step(RunPlan plan, int rank, std::shared_ptr<const data::Dataset> data,
                         const std::set<int64_t>& skipped = {});

}  // namespace mtrain::predict
