// The largest absolute value that a kernel writes, for the scales of 8-bit numbers.
#pragma once
#include "base/span.h"
#include "kernels/cuda/device/float8.h"
#include "kernels/cuda/device/vector.h"

namespace mtrain::kernels::cuda {

// Returns the larger of `most` and |x| after rounding to T; a value that is not finite counts as 0.
template <class T>
__device__ __forceinline__ float larger_stored(float most, float x) {
  return fmaxf(most, finite_size(rounded<T>(x)));
}
template <class T, int N>
__device__ __forceinline__ float larger_stored(float most, const float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) most = larger_stored<T>(most, x[j]);
  return most;
}

// Raises amax[0] to the largest `most` of the warp. All lanes of the warp must call this. Absolute
// values compare like their bits, and the order of the calls does not matter. Most warps read a
// larger amax and write nothing.
__device__ __forceinline__ void raise_amax(float* amax, float most) {
  const int size = int(__float_as_uint(warp_max(most)));
  if (threadIdx.x % kWarp == 0 && size > *reinterpret_cast<const volatile int*>(amax))
    atomicMax(reinterpret_cast<int*>(amax), size);
}

// The same for one thread of any block.
__device__ __forceinline__ void raise_amax_alone(float* amax, float most) {
  const int size = int(__float_as_uint(most));
  if (size > *reinterpret_cast<const volatile int*>(amax))
    atomicMax(reinterpret_cast<int*>(amax), size);
}

// with_amax(amax, [&]<bool AMAX>() { ... }) calls f with AMAX = whether amax is present: the search
// for a maximum takes registers, which kernels without it save.
template <class F>
void with_amax(const Span& amax, const F& f) {
  if (amax)
    f.template operator()<true>();
  else
    f.template operator()<false>();
}

}  // namespace mtrain::kernels::cuda
