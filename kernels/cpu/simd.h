// Vectors of the instruction set that the including file is compiled for. Every file of
// kernels/cpu/vector is compiled once for each instruction set, with MTRAIN_ISA naming its
// namespace (generic, avx2, avx512); kernels/cpu/dispatch.cpp picks one at run time. The files of
// kernels/cpu/vector_bf16 are compiled once, for AVX-512 with AVX512_BF16 (avx512bf16); those of
// kernels/cpu/vector_amx once, with AMX tiles as well (avx512amx).
//
// Beware: the linker keeps one copy of an inline function or template that several files share, and
// that copy may be the AVX-512 one, which an older CPU cannot run. Hence everything here is in the
// instruction set's namespace. Vector files use no standard container, no std::function (use
// parallel() below), no MT_CHECK (checks are in kernels/cpu/<op>.cpp) and no inline member of bf16
// or f16 (use from_float() and to_float() below). scripts/check_isa.sh checks the object files for
// this.
#pragma once
#if defined(__x86_64__)
// AVX-512 code uses the maskz forms, since GCC 12 warns about the undefined operand of the others.
#include <immintrin.h>
#endif
#include <cstdint>

#include "base/dtype.h"
#include "base/span.h"
#include "kernels/cpu/parallel.h"

#ifndef MTRAIN_ISA
#error "kernels/CMakeLists.txt must define MTRAIN_ISA for the files of kernels/cpu/vector*"
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
typedef float VfHalf __attribute__((vector_size(kLanes * 2)));
typedef double Vd __attribute__((vector_size(kLanes * 4)));  // half as many lanes

// x - 0 is x for every x; the compiler therefore emits only the broadcast. 0 + x would turn -0 into
// +0 and cost an addition.
MT_INLINE Vf splat(float x) { return x - Vf{}; }
MT_INLINE Vu splat_bits(uint32_t x) { return x | Vu{}; }

MT_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
MT_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
MT_INLINE int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- one element ---

MT_INLINE float to_float(float x) { return x; }
MT_INLINE float to_float(bf16 x) { return __builtin_bit_cast(float, uint32_t(x.bits) << 16); }
MT_INLINE float to_float(f16 x) {  // same result as f16's conversion
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  const uint32_t code = x.bits & 0x7fffu, sign = uint32_t(x.bits & 0x8000u) << 16;
  const float size = __builtin_bit_cast(float, code << 13) * 0x1p112f;
  const uint32_t bits = code < 0x7c00u ? __builtin_bit_cast(uint32_t, size)
                                       : code << 13 | 0x7f800000u | (code > 0x7c00u) << 22;
  return __builtin_bit_cast(float, sign | bits);
#endif
}
template <class T>
MT_INLINE T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, f16>) {  // the rounding of f16's constructor
#if defined(__F16C__)
    return __builtin_bit_cast(T, uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)));
#else
    const uint32_t u = __builtin_bit_cast(uint32_t, x), size = u & 0x7fffffffu;
    const float shifted = __builtin_bit_cast(float, size) + 0.5f;
    const uint32_t rounded = ((size + 0xfff + ((size >> 13) & 1)) >> 13) - (112u << 10);
    uint32_t code = rounded > 0x7c00u ? 0x7c00u : rounded;
    if (size < 0x38800000u) code = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000u;
    if (size > 0x7f800000u) code = 0x7e00 | (size >> 13 & 0x3ff);
    return __builtin_bit_cast(T, uint16_t((u >> 16 & 0x8000) | code));
#endif
  } else {  // the rounding of bf16's constructor
    const uint32_t u = __builtin_bit_cast(uint32_t, x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    const uint32_t h = nan ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return __builtin_bit_cast(T, uint16_t(h));
  }
}

// --- memory ---

template <class T>
MT_INLINE const T* data_of(const ConstSpan& s) {
  return static_cast<const T*>(s.data);
}
template <class T>
MT_INLINE T* data_of(const Span& s) {
  return static_cast<T*>(s.data);
}

MT_INLINE Vf widen(Vh h) {
#if defined(__AVX512F__)
  return (Vf)((Vu)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h) << 16);
#elif defined(__AVX2__)
  return (Vf)((Vu)_mm256_cvtepu16_epi32((__m128i)h) << 16);
#else
  return (Vf)(__builtin_convertvector(h, Vu) << 16);
#endif
}
MT_INLINE Vh low_halves(Vu v) {  // lanes below 2^16
#if defined(__AVX512F__)
  return (Vh)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)v);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (Vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(v, Vh);
#endif
}
// Rounds to nearest even; NaN stays NaN.
#if defined(__AVX512BF16__)
MT_INLINE Vh narrow_bf16(Vf v) {  // denormals become zero
  return (Vh)_mm512_cvtneps_pbh((__m512)v);
}
#else
MT_INLINE Vh narrow_bf16(Vf v) {
  const Vu u = (Vu)v;
  Vu r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  r = v == v ? r : (u >> 16) | 0x40;
  return low_halves(r);
}
#endif

// The same for f16: F16C's instructions, or the steps of f16's constructor.
#if defined(__AVX512F__)
MT_INLINE Vf widen_f16(Vh h) { return (Vf)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h); }
MT_INLINE Vh narrow_f16(Vf v) {
  return (Vh)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__F16C__)
MT_INLINE Vf widen_f16(Vh h) { return (Vf)_mm256_cvtph_ps((__m128i)h); }
MT_INLINE Vh narrow_f16(Vf v) { return (Vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#else
MT_INLINE Vf widen_f16(Vh h) {
  const Vu x = __builtin_convertvector(h, Vu), code = x & 0x7fff;
  const Vf size = (Vf)(code << 13) * 0x1p112f;
  const Vu special = (code << 13) | 0x7f800000 | (code > 0x7c00 ? splat_bits(1u << 22) : Vu{});
  return (Vf)((code < 0x7c00 ? (Vu)size : special) | (x & 0x8000) << 16);
}
MT_INLINE Vh narrow_f16(Vf v) {
  const Vu u = (Vu)v, size = u & 0x7fffffff;
  const Vu rounded = ((size + 0xfff + ((size >> 13) & 1)) >> 13) - (112u << 10);
  Vu code = rounded > 0x7c00 ? splat_bits(0x7c00) : rounded;
  code = size < 0x38800000 ? (Vu)((Vf)size + 0.5f) - 0x3f000000 : code;
  code = size > 0x7f800000 ? (size >> 13 & 0x3ff) | 0x7e00 : code;
  return low_halves(code | (u >> 16 & 0x8000));
}
#endif

// Conversions of the element types of 16 bits, by type.
template <class T>
MT_INLINE Vf widen_as(Vh h) {
  if constexpr (std::is_same_v<T, f16>)
    return widen_f16(h);
  else
    return widen(h);
}
template <class T>
MT_INLINE Vh narrow_as(Vf v) {
  if constexpr (std::is_same_v<T, f16>)
    return narrow_f16(v);
  else
    return narrow_bf16(v);
}
template <class T>
concept Half = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

MT_INLINE Vf load(const float* p) {
  Vf v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <Half T>
MT_INLINE Vf load(const T* p) {
  Vh h;
  __builtin_memcpy(&h, p, sizeof h);
  return widen_as<T>(h);
}
MT_INLINE void store(float* p, Vf v) { __builtin_memcpy(p, &v, sizeof v); }
template <Half T>
MT_INLINE void store(T* p, Vf v) {
  const Vh h = narrow_as<T>(v);
  __builtin_memcpy(static_cast<void*>(p), &h, sizeof h);
}

// How much of a vector is used: all of it, or its first `count` lanes (at the end of a row). The
// other lanes are read as 0 and are not written. An element's value therefore never depends on its
// position in a row.
struct Full {
  static constexpr int count = kLanes;
};
struct Part {
  int count;  // in (0, kLanes)
};

MT_INLINE Vf load(const float* p, Full) { return load(p); }
MT_INLINE void store(float* p, Vf v, Full) { store(p, v); }
template <Half T>
MT_INLINE Vf load(const T* p, Full) {
  return load(p);
}
template <Half T>
MT_INLINE void store(T* p, Vf v, Full) {
  store(p, v);
}

#if defined(__AVX512F__)
MT_INLINE Vf load(const float* p, Part m) {
  return (Vf)_mm512_maskz_loadu_ps(__mmask16((1u << m.count) - 1), p);
}
template <Half T>
MT_INLINE Vf load(const T* p, Part m) {
  return widen_as<T>((Vh)_mm256_maskz_loadu_epi16(__mmask16((1u << m.count) - 1), p));
}
MT_INLINE void store(float* p, Vf v, Part m) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << m.count) - 1), (__m512)v);
}
template <Half T>
MT_INLINE void store(T* p, Vf v, Part m) {
  _mm256_mask_storeu_epi16(p, __mmask16((1u << m.count) - 1), (__m256i)narrow_as<T>(v));
}
#else
// These move halves, quarters, ... of a vector: few loads and stores, and none with masks, which
// are slow on some CPUs.
MT_INLINE Vf load(const float* p, Part m) {
  float lane[kLanes] = {};
  float* to = lane;
#pragma GCC unroll 4
  for (int width = kLanes / 2; width > 0; width /= 2)
    if (m.count & width) {
      __builtin_memcpy(to, p, size_t(width) * sizeof *p);
      p += width, to += width;
    }
  return load(lane);
}
template <Half T>
MT_INLINE Vf load(const T* p, Part m) {
  float lane[kLanes] = {};
  for (int i = 0; i < m.count; ++i) lane[i] = to_float(p[i]);
  return load(lane);
}
MT_INLINE void store(float* p, Vf v, Part m) {
  float lane[kLanes];
  store(lane, v);
  const float* from = lane;
#pragma GCC unroll 4
  for (int width = kLanes / 2; width > 0; width /= 2)
    if (m.count & width) {
      __builtin_memcpy(p, from, size_t(width) * sizeof *p);
      p += width, from += width;
    }
}
template <Half T>
MT_INLINE void store(T* p, Vf v, Part m) {
  const Vh h = narrow_as<T>(v);
  for (int i = 0; i < m.count; ++i) p[i] = __builtin_bit_cast(T, uint16_t(h[i]));
}
#endif

// Returns v after a store as T and a load: rounded for 16 bits, unchanged for fp32.
template <class T>
MT_INLINE Vf round_to(Vf v) {
  if constexpr (sizeof(T) == 4)
    return v;
  else
    return widen_as<T>(narrow_as<T>(v));
}

// Returns the used lanes of v, and the lanes of `other` beyond them.
MT_INLINE Vf first_lanes(Full, Vf v, Vf) { return v; }
MT_INLINE Vf first_lanes(Part m, Vf v, Vf other) {
  Vi lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < m.count ? v : other;
}
// Returns the used lanes of v, and 0 beyond them: for sums of values that are not 0 where their
// inputs are.
template <class Lanes>
MT_INLINE Vf only(Vf v, Lanes m) {
  return first_lanes(m, v, Vf{});
}

// Calls body(i, Full or Part) for i = 0, kLanes, ... below n.
template <class Body>
MT_INLINE void for_lanes(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, Part{int(n - i)});
}

// The same for loops with UNROLL independent accumulators: calls body(i, lanes, k), k in [0,
// UNROLL).
template <int UNROLL, class Body>
MT_INLINE void for_lanes_unrolled(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + UNROLL * kLanes <= n; i += UNROLL * kLanes) {
#pragma GCC unroll 8
    for (int k = 0; k < UNROLL; ++k) body(i + k * kLanes, Full{}, k);
  }
  for (; i + kLanes <= n; i += kLanes) body(i, Full{}, 0);
  if (i < n) body(i, Part{int(n - i)}, 0);
}

// Prefetch the memory at p for reading or for writing: a CPU's own prefetcher may not follow short
// rows. p may be beyond the end of the memory.
template <class T>
MT_INLINE void prefetch(const T* p) {
  __builtin_prefetch(p, 0, 2);
}
template <class T>
MT_INLINE void prefetch_to_write(const T* p) {
  __builtin_prefetch(p, 1, 2);
}

// Calls fn(begin, end) over [0, n) in chunks that depend only on n and grain, on the pool of the
// current thread (base/thread_pool.h).
template <class F>
MT_INLINE void parallel(int64_t n, int64_t grain, const F& fn) {
  parallel_chunks(n, grain, &fn, [](const void* context, int64_t begin, int64_t end) {
    (*static_cast<const F*>(context))(begin, end);
  });
}

// Uninitialized memory for one call, aligned to a cache line.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<T*>(allocate_scratch(int64_t(sizeof(T)) * count))) {}
  ~Scratch() { free_scratch(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

// --- arithmetic ---

// The larger of a and b; the second argument if one of them is NaN. vmin() returns the smaller one,
// with the same rule for NaN.
MT_INLINE Vf vmax(Vf a, Vf b) {
#if defined(__AVX512F__)
  return (Vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (Vf)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}
MT_INLINE Vf vmin(Vf a, Vf b) {
#if defined(__AVX512F__)
  return (Vf)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (Vf)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}
MT_INLINE Vf vsqrt(Vf v) {
#if defined(__AVX512F__)
  return (Vf)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif defined(__AVX2__)
  return (Vf)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
  return (Vf)_mm_sqrt_ps((__m128)v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}
MT_INLINE Vf vabs(Vf v) { return (Vf)((Vu)v & 0x7fffffff); }

// Adds the lanes pairwise, always in the same order.
MT_INLINE float sum_lanes(Vf v) {
  float lane[kLanes];
  __builtin_memcpy(lane, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}
MT_INLINE double sum_lanes(Vd v) {
  double sum = v[0];
  for (int i = 1; i < kLanes / 2; ++i) sum += v[i];
  return sum;
}
MT_INLINE float max_lanes(Vf v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// Return the lower and the upper half of v in fp64.
MT_INLINE Vd low_f64(Vf v) {
  VfHalf h;
  __builtin_memcpy(&h, &v, sizeof h);
  return __builtin_convertvector(h, Vd);
}
MT_INLINE Vd high_f64(Vf v) {
  VfHalf h[2];
  __builtin_memcpy(h, &v, sizeof h);
  return __builtin_convertvector(h[1], Vd);
}

// e^x to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, polynomial in r, times 2^n. e^-inf is 0.
// Below -87.3 the result is 0 without AVX-512, and denormal with it. Above 88.4 it stays at e^88.4.
// NaN stays NaN.
MT_INLINE Vf vexp(Vf x) {
#if defined(__AVX512F__)
  const Vf lowest = splat(-104.0f);
#else
  const Vf lowest = splat(-87.33f);
#endif
  const Vf clamped = vmin(splat(88.37f), vmax(lowest, x));  // in this order a NaN is preserved
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
#if defined(__AVX512F__)
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return (Vf)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);
#else
  p = p * r * r + r + 1.0f;
  const Vi exponent = ((Vi)shifted << 23);  // the integer is in the low bits of `shifted`
  const Vf result = (Vf)((Vi)p + exponent);
  return x < lowest ? splat(0.0f) : x == x ? result : x;
#endif
}

// 1 / d to about 1 ulp, for 1 <= d < inf.
MT_INLINE Vf reciprocal(Vf d) {
#if defined(__AVX512F__)
  const Vf guess = (Vf)_mm512_maskz_rcp14_ps(0xffff, (__m512)d);
  return guess + guess * (1.0f - d * guess);  // one step of Newton's method doubles its 14 bits
#else
  return 1.0f / d;
#endif
}

MT_INLINE Vf sigmoid(Vf x) { return reciprocal(1.0f + vexp(-x)); }

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
