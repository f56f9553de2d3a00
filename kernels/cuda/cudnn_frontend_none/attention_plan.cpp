// For builds without cuDNN's C++ frontend: attention is computed by mtrain's own kernels.
#include "kernels/cuda/cudnn/attention_plan.h"

namespace mtrain::kernels::cuda {

std::string why_no_cudnn_frontend() {
  return "this build lacks cuDNN's C++ frontend (scripts/install-deps.sh --cudnn-frontend)";
}
std::string cudnn_frontend_description() { return "no cudnn-frontend"; }

std::unique_ptr<CudnnAttentionPlan> make_cudnn_attention_plan(const CudnnAttentionKey&,
                                                              const CudnnPlace&,
                                                              const CudnnPlanOptions&) {
  throw RunError(why_no_cudnn_frontend());
}

}  // namespace mtrain::kernels::cuda
