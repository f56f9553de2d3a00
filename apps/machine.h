// What the machine has that a recipe's train.device: auto may take, as both programs see it.
#pragma once
#include <string_view>

#include "launch/host_gpus.h"
#include "plan/load_recipe.h"

namespace mtrain {

// MTRAIN_CUDA_VERSION is empty in a build without CUDA.
inline plan::Machine machine(int ranks_per_host) {
  const std::vector<std::string> gpus = launch::visible_gpus();
  const bool built = std::string_view(MTRAIN_CUDA_VERSION) != "";
  return {.gpus = built ? int(gpus.size()) : 0,
          .gpu_name = gpus.empty() ? "" : gpus[0],
          .ranks_per_host = ranks_per_host};
}

}  // namespace mtrain
