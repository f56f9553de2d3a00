// Describes the device that a plan is for, and whether the plan fits its memory.
#pragma once
#include <string>

#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Returns a phrase such as "h100 for each rank (hardware.gpu), 8 in a node" or "CPU, 4 threads for
// each rank".
std::string device_text(const Recipe& recipe, const RunPlan& plan);
// Whether each rank computes on a GPU.
bool uses_gpus(const RunPlan& plan);

// The bytes that a plan needs, and the bytes of the memory that it must fit.
struct MemoryDemand {
  double bytes = 0, memory = 0;  // memory is 0 if it is not known
  bool of_host = false;          // all ranks share it; otherwise it is that of the fullest rank

  bool known() const { return memory > 0; }
  bool fits() const;  // true if the memory is not known
};

// CPU ranks share the host's memory. It counts as known only if the host has a core for each rank.
// The plan must have a vocabulary.
MemoryDemand memory_demand(const Recipe& recipe, const RunPlan& plan);

// Returns a phrase such as "61.2 GiB of 74.5 GiB planned: fits"; empty if the memory is not known.
std::string fit_text(const Recipe& recipe, const RunPlan& plan);
// Returns a sentence such as "each of the 8 ranks needs 90.7 GiB, and its device has 74.5 GiB, of
// which a tenth is left to libraries". It names the ranks that need most.
std::string need_text(const MemoryDemand& demand, const RunPlan& plan);

}  // namespace mtrain::plan
