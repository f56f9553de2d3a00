// What the ranks of a run need in order to meet, before they read a file and make the RunPlan.
#pragma once
#include <cstdint>
#include <string>

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
  std::string recipe;  // printed; the same on all ranks
};

// Returns what the device needs to know before it is opened.
DevicePlan device_plan(const recipe::Recipe& recipe, const Overlap& overlap);

// Returns it for a recipe that load_recipe() has found to be without errors. Needs neither the
// vocabulary nor the number of steps.
MeetingPlan meeting_plan(const recipe::Recipe& recipe, int64_t world);

// Returns the same as a part of the whole plan.
MeetingPlan meeting_plan(const RunPlan& plan);

}  // namespace mtrain::plan
