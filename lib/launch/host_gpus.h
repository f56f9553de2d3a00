// The GPUs of this host. CUDA is not started, since its library reads the environment at its start.
#pragma once
#include <string>
#include <vector>

namespace mtrain::launch {

// Returns the model names of the GPUs that this process may use ("NVIDIA H200"), in the order of
// the driver; a name is empty if the driver does not have it. Respects CUDA_VISIBLE_DEVICES.
std::vector<std::string> visible_gpus();
// Returns those of a host's GPUs that a value of CUDA_VISIBLE_DEVICES chooses. A GPU that is named
// by its UUID gets the first GPU's name; a MIG slice also gets the suffix " MIG".
std::vector<std::string> gpus_chosen_by(const std::string& visible_devices,
                                        const std::vector<std::string>& names);

}  // namespace mtrain::launch
