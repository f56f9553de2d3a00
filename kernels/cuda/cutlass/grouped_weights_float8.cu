// CUTLASS's kernels for the gradients of experts' weights in 8 bits.
#include "kernels/cuda/cutlass/grouped_kernel.h"

namespace mtrain::kernels::cuda {

template <class A>
using Float8Weights = CutlassKind<A, CutlassE4m3, float, CutlassRows, CutlassColumns>;

std::string run_float8_weights(const CutlassCall& call, CUstream_st* stream) {
  return call.gemm == CutlassGemm::e5m2_weights
             ? run_kind<Float8Weights<CutlassE5m2>>(call, stream)
             : run_kind<Float8Weights<CutlassE4m3>>(call, stream);
}

}  // namespace mtrain::kernels::cuda
