// CUTLASS's kernels for the rows of experts in 8 bits.
#include "kernels/cuda/cutlass/grouped_kernel.h"

namespace mtrain::kernels::cuda {

template <class A>
using Float8Rows = CutlassKind<A, CutlassE4m3, CutlassBf16, CutlassRows, CutlassColumns>;

std::string run_float8_rows(const CutlassCall& call, CUstream_st* stream) {
  return call.gemm == CutlassGemm::e5m2_rows ? run_kind<Float8Rows<CutlassE5m2>>(call, stream)
                                             : run_kind<Float8Rows<CutlassE4m3>>(call, stream);
}

}  // namespace mtrain::kernels::cuda
