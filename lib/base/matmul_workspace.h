// The workspace of a GEMM on a GPU. kernels/cuda/matmul.cpp allocates it; lib/plan, which must not
// include kernels, counts it.
#pragma once
#include <cstdint>

namespace mtrain {

// Bytes that every GEMM by cuBLASLt may use: the size that the vendor recommends for Hopper.
inline constexpr int64_t kMatmulWorkspace = 32ll << 20;

}  // namespace mtrain
