// Functions that kernels which quantize to 8 bits share.
#pragma once
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {

// Returns |x|, or 0 if x is not finite.
__device__ __forceinline__ float finite_size(float x) { return isfinite(x) ? fabsf(x) : 0.0f; }

// Returns x * scale, or NaN if x is not finite.
__device__ __forceinline__ float scaled(float x, float scale) {
  return isfinite(x) ? x * scale : __uint_as_float(0x7fc00000u);
}

// Returns the largest x of a block of WARPS warps, to each of its threads.
template <int WARPS>
__device__ __forceinline__ float block_max(float x) {
  __shared__ float slots[kWarp];
  x = warp_max(x);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  if (lane == 0) slots[warp] = x;
  __syncthreads();
  x = warp_max(lane < WARPS ? slots[lane] : 0.0f);
  __syncthreads();  // slots may be written again
  return x;
}

// Transposes a 4 x 4 matrix of bytes, held in four words.
__device__ __forceinline__ void transpose_bytes(uint32_t& a, uint32_t& b, uint32_t& c,
                                                uint32_t& d) {
  const uint32_t ab01 = __byte_perm(a, b, 0x5140), ab23 = __byte_perm(a, b, 0x7362),
                 cd01 = __byte_perm(c, d, 0x5140), cd23 = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab01, cd01, 0x5410), b = __byte_perm(ab01, cd01, 0x7632);
  c = __byte_perm(ab23, cd23, 0x5410), d = __byte_perm(ab23, cd23, 0x7632);
}

}  // namespace mtrain::kernels::cuda
