// CUTLASS's kernels for the rows of experts in bf16, and the choice among all its kernels.
#include <cutlass/version.h>

#include "kernels/cuda/cutlass/grouped_kernel.h"

namespace mtrain::kernels::cuda {

std::string why_no_cutlass() { return ""; }
std::string cutlass_version() {
  return std::to_string(CUTLASS_MAJOR) + "." + std::to_string(CUTLASS_MINOR) + "." +
         std::to_string(CUTLASS_PATCH);
}

std::string run_cutlass(const CutlassCall& call, CUstream_st* stream) {
  using Bf16 = CutlassBf16;
  switch (call.gemm) {
    case CutlassGemm::bf16_rows:
      return run_kind<CutlassKind<Bf16, Bf16, Bf16, CutlassRows, CutlassColumns>>(call, stream);
    case CutlassGemm::bf16_rows_plain_b:
      return run_kind<CutlassKind<Bf16, Bf16, Bf16, CutlassRows, CutlassRows>>(call, stream);
    case CutlassGemm::bf16_weights: return run_bf16_weights(call, stream);
    case CutlassGemm::e4m3_rows:
    case CutlassGemm::e5m2_rows: return run_float8_rows(call, stream);
    case CutlassGemm::e4m3_weights:
    case CutlassGemm::e5m2_weights: return run_float8_weights(call, stream);
  }
  return "there is no such kernel";
}

}  // namespace mtrain::kernels::cuda
