// The GPUs of this host, found without starting CUDA, whose library reads its environment when it
// starts.
#pragma once
#include <string>
#include <vector>

namespace mtrain::launch {

// Returns the model names of the GPUs that this process may use ("NVIDIA H200"), in the order of
// the driver; a name is empty where the driver does not tell it. CUDA_VISIBLE_DEVICES is obeyed.
std::vector<std::string> visible_gpus();
// Returns those of a host's GPUs that a value of CUDA_VISIBLE_DEVICES chooses. One that is named by
// its UUID gets the first GPU's name, and a MIG slice " MIG" behind it.
std::vector<std::string> gpus_chosen_by(const std::string& visible_devices,
                                        const std::vector<std::string>& names);

}  // namespace mtrain::launch
