// Replaces nccl/nccl_library.cpp in builds without NCCL.
#include "comm/nccl/nccl_library.h"

#include "base/error.h"

namespace mtrain::comm {

std::shared_ptr<NcclApi> load_nccl(int) {
  throw UserError(
      "this build has no NCCL",
      "set train.device=cpu and comm.backend=auto (dist_env.backend); or configure with "
      "-DMTRAIN_CUDA=ON on a machine with the CUDA Toolkit and nccl.h");
}

std::string nccl_description() { return "NCCL not in this build"; }

}  // namespace mtrain::comm
