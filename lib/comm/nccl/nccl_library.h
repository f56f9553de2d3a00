// NCCL is loaded at run time: a build with it also starts on machines that lack it.
#pragma once
#include <memory>
#include <string>

#include "comm/nccl/nccl_api.h"

namespace mtrain::comm {

// Returns NCCL for the rank that runs on this GPU. Throws UserError if it cannot be loaded.
std::shared_ptr<NcclApi> load_nccl(int cuda_device);

// Returns "NCCL 2.28.9", or why there is none.
std::string nccl_description();

}  // namespace mtrain::comm
