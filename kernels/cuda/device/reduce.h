// Sums and maxima over a warp and over a row's threads, in a fixed order.
#pragma once
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane gets the same result, bit for bit.
template <class V>
__device__ __forceinline__ V warp_sum(V x) {
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}

// Returns the sum of x over the lanes up to this one.
__device__ __forceinline__ int warp_prefix_sum(int x) {
  const int lane = int(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 1; i < kWarp; i *= 2) {
    const int before = __shfl_sync(kAllLanes, x, (lane + kWarp - i) % kWarp);
    if (lane >= i) x += before;
  }
  return x;
}

// Returns the sum over the block's `warps` warps, all of them full, to each thread. One warp needs
// no barrier. `slots` is shared memory for 32 values.
template <class V>
__device__ __forceinline__ V row_sum(V x, int warps, V* slots) {
  x = warp_sum(x);
  if (warps == 1) return x;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (lane == 0) slots[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? slots[lane] : V(0));
  __syncthreads();  // slots may be written again
  return x;
}

}  // namespace mtrain::kernels::cuda
