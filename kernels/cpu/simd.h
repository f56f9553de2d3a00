// Vectors of the instruction set this file is compiled for. Every file of kernels/cpu/vector is compiled once per instruction set, with
// MTRAIN_ISA naming a namespace (generic, avx2, avx512); kernels/cpu/dispatch.cpp picks one at run time. Everything here is in
// that namespace and always inlined, so that no AVX-512 copy of a shared function can reach the generic build. For the same
// reason kernel files use no standard containers in their inner parts and define no function with external linkage outside
// the namespace.
#pragma once
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/span.h"

#ifndef MTRAIN_ISA
#error "kernels/cpu/vector/*.cpp are compiled per instruction set by kernels/CMakeLists.txt, which defines MTRAIN_ISA"
#endif

#define MT_INLINE static inline __attribute__((always_inline))

namespace mtrain::kernels::cpu::MTRAIN_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t Vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Vh __attribute__((vector_size(kLanes * 2)));

MT_INLINE Vf splat(float x) { return Vf{} + x; }

MT_INLINE Vf load(const float* p) {
  Vf v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MT_INLINE Vf load(const bf16* p) {
  Vh h;
  __builtin_memcpy(&h, p, sizeof h);
  return (Vf)(__builtin_convertvector(h, Vu) << 16);
}
MT_INLINE void store(float* p, Vf v) { __builtin_memcpy(p, &v, sizeof v); }
MT_INLINE void store(bf16* p, Vf v) {  // rounds to nearest even; NaN stays NaN
  const Vu u = (Vu)v;
  Vu r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  r = (Vu)((u & 0x7fffffff) > 0x7f800000) ? (u >> 16) | 0x40 : r;
  const Vh h = __builtin_convertvector(r, Vh);
  __builtin_memcpy(static_cast<void*>(p), &h, sizeof h);
}

MT_INLINE float to_float(float x) { return x; }
MT_INLINE float to_float(bf16 x) { return static_cast<float>(x); }
template <class T> MT_INLINE T from_float(float x) { return T(x); }

MT_INLINE Vf vmax(Vf a, Vf b) { return a > b ? a : b; }
MT_INLINE Vf vmin(Vf a, Vf b) { return a < b ? a : b; }

// Pairwise over the lanes: the same order whatever the values.
MT_INLINE float sum_lanes(Vf v) {
  float lane[kLanes];
  __builtin_memcpy(lane, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}
MT_INLINE float max_lanes(Vf v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// e^x to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, polynomial in r, n added to the exponent. Below -87.3 it is 0.
MT_INLINE Vf vexp(Vf x) {
  const Vf clamped = vmin(vmax(x, splat(-87.33f)), splat(88.37f));
  const Vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vf shifted = clamped * 1.44269504088896341f + magic;
  const Vf n = shifted - magic;
  Vf r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Vi exponent = ((Vi)shifted << 23);  // the integer sits in the low bits of `shifted`
  const Vf result = (Vf)((Vi)p + exponent);
  return x < -87.33f ? splat(0.0f) : x == x ? result : x;
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
