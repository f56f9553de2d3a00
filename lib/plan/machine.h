// The machine that a recipe is loaded on.
#pragma once
#include <string>

namespace mtrain::plan {

// What the machine has that `train.device: auto` may use.
struct Machine {
  int gpus = 0;            // GPUs that this build can compute on
  std::string gpu_name;    // "NVIDIA H200"; empty if unknown
  int ranks_per_host = 1;  // each rank needs a GPU of its own
  // A plan that starts no rank (--dry-run) may be for other machines. It is if the recipe names
  // hardware.gpu, or if this host has no GPU and fewer cores than ranks.
  bool dry_run = false;
  int cores = 1;  // cores that this process may use
};

}  // namespace mtrain::plan
