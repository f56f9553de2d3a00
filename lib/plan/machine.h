// The machine that a recipe is loaded on.
#pragma once
#include <string>

namespace mtrain::plan {

// What the machine has that `train.device: auto` may take.
struct Machine {
  int gpus = 0;            // GPUs that this build can compute on
  std::string gpu_name;    // "NVIDIA H200"; empty if unknown
  int ranks_per_host = 1;  // each needs a GPU of its own
  // A plan that starts no rank (--dry-run) may be for other machines than this one. It is, if the
  // recipe names hardware.gpu, or if the ranks are more than this host's cores.
  bool dry_run = false;
  int cores = 1;  // that this process may use
};

}  // namespace mtrain::plan
