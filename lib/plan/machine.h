// The machine that a recipe is loaded on.
#pragma once
#include <string>

namespace mtrain::plan {

// What the machine has that `train.device: auto` may take.
struct Machine {
  int gpus = 0;            // GPUs that this build can compute on
  std::string gpu_name;    // "NVIDIA H200"; empty if unknown
  int ranks_per_host = 1;  // each needs a GPU of its own
};

}  // namespace mtrain::plan
