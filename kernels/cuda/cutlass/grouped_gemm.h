// GEMMs of experts by CUTLASS on Hopper: persistent kernels that load by TMA and multiply by wgmma.
// Builds without CUTLASS compile kernels/cuda/cutlass_none. This header includes no CUDA header.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/cuda/grouped/groups.h"

struct CUstream_st;

namespace mtrain::kernels::cuda {

// D_e (M, N) = alpha A_e (M, K) B_e (N, K)^T + beta C_e for each group e.
enum class CutlassGemm : uint8_t {
  bf16_rows,          // A and B have contiguous K; D is bf16
  bf16_rows_plain_b,  // B has contiguous N
  bf16_weights,       // A has contiguous M, B contiguous N; D is fp32
  e4m3_rows,          // e4m3 operands with contiguous K; D is bf16
  e5m2_rows,          // A is e5m2
  e4m3_weights,       // e4m3 operands with contiguous K; D is fp32
  e5m2_weights,       // A is e5m2
};

struct CutlassCall {
  CutlassGemm gemm;
  GroupArrays groups;            // in device memory
  const float* alpha = nullptr;  // in device memory
  bool accumulate = false;       // beta is 1 and C is D; only for weights
  int multiprocessors = 0;       // how many the kernel may use
  void* workspace = nullptr;     // kCutlassWorkspace bytes
};
// The kernels keep a TMA descriptor of each operand for each multiprocessor here.
constexpr int64_t kCutlassWorkspace = 256 * 1024;

// Returns why this build has no such kernels; "" if it has them.
std::string why_no_cutlass();
std::string cutlass_version();  // "4.2.0", or "none"
// Enqueues the GEMMs. Returns "", or why they cannot run; nothing is enqueued then. The current GPU
// must have compute capability 9.0. Safe in the capture of a graph.
[[nodiscard]] std::string run_cutlass(const CutlassCall& call, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
