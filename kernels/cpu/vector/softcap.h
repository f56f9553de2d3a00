// Soft caps: c tanh(x / c), which is in [-c, c] and has slope 1 at 0 (Gemma 2).
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// tanh to about 2 ulp. Near 0 it is x + x^3 P(x^2), where P is the Chebyshev interpolation of
// degree 4 for |x| <= 0.64 (relative error 2.2e-8); for larger |x|, (1 - e) / (1 + e) with e =
// exp(-2 |x|) does not cancel. NaN stays NaN.
MT_INLINE Vf vtanh(Vf x) {
  const Vf size = vabs(x), e = vexp(-2.0f * size), z = x * x;
  const Vf far = (1.0f - e) * reciprocal(1.0f + e);
  Vf p = splat(-5.992961257e-03f);
  p = p * z + 2.092414819e-02f;
  p = p * z - 5.383514127e-02f;
  p = p * z + 1.333266348e-01f;
  p = p * z - 3.333332786e-01f;
  return size < 0.625f ? x + x * z * p : x < 0.0f ? -far : far;
}

// The cap that is applied to a row of numbers, or none.
struct NoCap {};
struct TanhCap {
  float cap, inverse;  // inverse = 1 / cap
};
MT_INLINE Vf capped(Vf x, NoCap) { return x; }
MT_INLINE Vf capped(Vf x, TanhCap c) { return c.cap * vtanh(x * c.inverse); }
MT_INLINE float capped(float x, NoCap) { return x; }
MT_INLINE float capped(float x, TanhCap c) { return capped(splat(x), c)[0]; }

// Returns d times the cap's derivative at x: with e = exp(-2 |x / c|), 1 - tanh(x / c)^2 is 4 e /
// (1 + e)^2, which stays accurate where tanh is near 1.
MT_INLINE Vf through_cap(Vf d, Vf, NoCap) { return d; }
MT_INLINE Vf through_cap(Vf d, Vf x, TanhCap c) {
  const Vf e = vexp(-2.0f * vabs(x * c.inverse)), r = reciprocal(1.0f + e);
  return d * (4.0f * e * r * r);
}
MT_INLINE float through_cap(float d, float, NoCap) { return d; }
MT_INLINE float through_cap(float d, float x, TanhCap c) {
  return through_cap(splat(d), splat(x), c)[0];
}

// with_cap(cap, [&](auto cap) { ... }) calls f with the cap, or with NoCap if it is 0.
template <class F>
MT_INLINE void with_cap(float cap, const F& f) {
  if (cap == 0)
    f(NoCap{});
  else
    f(TanhCap{cap, 1 / cap});
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
