#include <string_view>

#include <fmt/core.h>

#include "comm/nccl/nccl_library.h"
#include "commands.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/cudnn/attention_plan.h"
#include "kernels/cuda/grouped/grouped_engine.h"

namespace mtrain {

std::string version_text() {
  constexpr std::string_view cuda = MTRAIN_CUDA_VERSION;
  return fmt::format(
      "mtrain {}\n  cpu   {}{}\n  cuda  {}", MTRAIN_VERSION,
      kernels::cpu::isa_name(kernels::cpu::isa()),
      kernels::cpu::build_lacks_wider_isa() ? ", built without this CPU's wider kernels" : "",
      cuda.empty() ? "not in this build"
                   : fmt::format("runtime {}, {}\n        {}, {}\n        {}", cuda,
                                 comm::nccl_description(), kernels::cuda::cudnn_description(),
                                 kernels::cuda::cudnn_frontend_description(),
                                 kernels::cuda::cutlass_description()));
}

}  // namespace mtrain
