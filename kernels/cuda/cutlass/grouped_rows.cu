// CUTLASS's kernels for the rows of experts in bf16, and the choice among all its kernels.
#include <cutlass/version.h>

#include "kernels/cuda/cutlass/grouped_kernel.h"

namespace mtrain::kernels::cuda {

std::string why_no_cutlass() { return ""; }
std::string cutlass_version() {
  return std::to_string(CUTLASS_MAJOR) + "." + std::to_string(CUTLASS_MINOR) + "." +
         std::to_string(CUTLASS_PATCH);
}

namespace {

// Returns the driver's status for the descriptor of a small matrix. CUTLASS would continue without
// descriptors, and its kernel would then wait forever.
CUresult try_descriptor() {
  alignas(64) CUtensorMap map;
  const cuuint64_t sizes[] = {64, 64}, strides[] = {128};
  const cuuint32_t box[] = {64, 64}, steps[] = {1, 1};
  void* const any_address = reinterpret_cast<void*>(uintptr_t(1) << 20);
  return cutlass::call_cuTensorMapEncodeTiled(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, cuuint32_t(2), any_address, sizes, strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace

std::string run_cutlass(const CutlassCall& call, CUstream_st* stream) {
  using Bf16 = CutlassBf16;
  static const CUresult status = try_descriptor();
  if (status != CUDA_SUCCESS)
    return "the driver makes no TMA descriptors (status " + std::to_string(int(status)) + ")";
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
