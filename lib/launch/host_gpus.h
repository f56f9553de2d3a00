// The GPUs of this host, found without starting CUDA, whose library reads its environment when it
// starts.
#pragma once
#include <string>
#include <vector>

namespace mtrain::launch {

// Returns the model names of the GPUs that this process may use ("NVIDIA H200"), in the order of
// the driver; a name is empty where the driver does not tell it. CUDA_VISIBLE_DEVICES is obeyed.
std::vector<std::string> visible_gpus();

}  // namespace mtrain::launch
