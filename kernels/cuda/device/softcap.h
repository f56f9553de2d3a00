// Soft caps: c tanh(x / c), which is in [-c, c] and has slope 1 at 0 (Gemma 2).
#pragma once
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

// The cap that is applied to a row of numbers, or none.
struct NoCap {};
struct TanhCap {
  float cap, inverse;  // inverse = 1 / cap
};
__device__ __forceinline__ float capped(float x, NoCap) { return x; }
__device__ __forceinline__ float capped(float x, TanhCap c) { return c.cap * tanhf(x * c.inverse); }

// Returns d times the cap's derivative at x: with e = exp(-2 |x / c|), 1 - tanh(x / c)^2 is 4 e /
// (1 + e)^2, which stays accurate where tanh is near 1.
__device__ __forceinline__ float through_cap(float d, float, NoCap) { return d; }
__device__ __forceinline__ float through_cap(float d, float x, TanhCap c) {
  constexpr float kMinus2Log2E = -2.88539008177792681f;
  const float e = fast_exp2(kMinus2Log2E * fabsf(x * c.inverse)), r = fast_reciprocal(1.0f + e);
  return d * (4.0f * e * r * r);
}

// with_cap(cap, [&](auto cap) { ... }) calls f with the cap, or with NoCap if it is 0.
template <class F>
void with_cap(float cap, const F& f) {
  if (cap == 0)
    f(NoCap{});
  else
    f(TanhCap{cap, 1 / cap});
}

}  // namespace mtrain::kernels::cuda
