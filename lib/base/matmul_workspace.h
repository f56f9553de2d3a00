// The workspace of a GEMM on a GPU. kernels/cuda/matmul.cpp allocates it, and the plan of memory,
// which may include no kernel, counts it.
#pragma once
#include <cstdint>

namespace mtrain {

// In bytes. Every GEMM by cuBLASLt is offered the most that any may ask for, as the vendor advises
// for Hopper.
inline constexpr int64_t kMatmulWorkspace = 32ll << 20;

}  // namespace mtrain
