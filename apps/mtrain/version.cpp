#include <string_view>

#include <fmt/core.h>

#include "comm/nccl/nccl_library.h"
#include "commands.h"
#include "kernels/cuda/cudnn/api.h"

namespace mtrain {

std::string version_text() {
  constexpr std::string_view cuda = MTRAIN_CUDA_VERSION;
  return fmt::format(
      "mtrain {}\n  cpu   oneDNN, OpenBLAS (loaded at run time)\n  cuda  {}", MTRAIN_VERSION,
      cuda.empty() ? "not in this build"
                   : fmt::format("runtime {}, {}, {}", cuda, kernels::cuda::cudnn_description(),
                                 nccl_description()));
}

}  // namespace mtrain
