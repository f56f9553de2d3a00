#include "kernels/latent_heads.h"

#include "base/error.h"

namespace mtrain::kernels::cuda {
namespace {

[[noreturn]] void refuse_latent_heads() {
  throw UserError("latent attention on a GPU",
                  "latent attention does not run on CUDA yet: set train.device: cpu");
}

}  // namespace

void run(const LatentHeadsForward&, CUstream_st*) { refuse_latent_heads(); }
void run(const LatentHeadsBackward&, CUstream_st*) { refuse_latent_heads(); }

}  // namespace mtrain::kernels::cuda
