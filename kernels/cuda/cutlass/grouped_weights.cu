// CUTLASS's kernel for the gradients of experts' weights in bf16.
#include "kernels/cuda/cutlass/grouped_kernel.h"

namespace mtrain::kernels::cuda {

std::string run_bf16_weights(const CutlassCall& call, CUstream_st* stream) {
  return run_kind<CutlassKind<CutlassBf16, CutlassBf16, float, CutlassColumns, CutlassRows>>(
      call, stream);
}

}  // namespace mtrain::kernels::cuda
