// NCCL, loaded at run time: a build with it also starts on machines without.
#pragma once
#include <memory>
#include <string>

#include "comm/nccl/nccl_api.h"

namespace mtrain {

// For the rank that runs on this GPU. Throws UserError where NCCL is not to be had.
std::shared_ptr<NcclApi> load_nccl(int cuda_device);

// "NCCL 2.28.9", or why there is none.
std::string nccl_description();

}  // namespace mtrain
