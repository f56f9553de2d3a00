// Holds what the ranks of a run need to connect with each other, before they read files and make
// the RunPlan.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/pulse.h"
#include "plan/options/device_plan.h"
#include "plan/options/train_options.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct Overlap;
struct RunPlan;

struct MeetingPlan {
  FolderOptions folders;
  CheckpointOptions checkpoint;
  DevicePlan device;
  CommOptions comm;
  PulseLimits limits;  // of the launcher for ranks that hang
  std::vector<FaultOptions> faults;
  std::string recipe;  // printed; must be the same on all ranks
};

// Returns what the device needs to know before it is opened.
DevicePlan device_plan(const recipe::Recipe& recipe, int64_t world, const Overlap& overlap);

// Makes the plan from a recipe in which load_recipe() found no error. Needs neither the vocabulary
// nor the number of steps.
MeetingPlan meeting_plan(const recipe::Recipe& recipe, int64_t world);

// Copies the plan out of a RunPlan, without limits.
MeetingPlan meeting_plan(const RunPlan& plan);

}  // namespace mtrain::plan
