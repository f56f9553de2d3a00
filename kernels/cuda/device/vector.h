// Loads and stores of N consecutive elements as floats: 16 bytes per access if N allows.
#pragma once
#include <initializer_list>

#include "base/dtype.h"
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

template <class T>
inline constexpr int kVector = 16 / int(sizeof(T));  // elements of one access

// Returns whether 16-byte accesses are possible at all these addresses; null counts as possible.
inline bool aligned(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return bits % 16 == 0;
}

template <class T>
concept Half = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

// Return the element of type T in the low or in the high half of a word.
template <Half T>
__device__ __forceinline__ float low_half(uint32_t pair) {
  if constexpr (std::is_same_v<T, f16>) return f16_low(pair);
  return __uint_as_float(pair << 16);
}
template <Half T>
__device__ __forceinline__ float high_half(uint32_t pair) {
  if constexpr (std::is_same_v<T, f16>) return f16_high(pair);
  return __uint_as_float(pair & 0xffff0000u);
}
// Packs two elements, rounded to nearest even; the first goes into the low half.
template <Half T>
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  if constexpr (std::is_same_v<T, f16>) return pack_f16(low, high);
  return pack_bf16(low, high);
}

// A vector in its memory format: 16-bit elements take half the registers that their floats would.
template <class T>
__device__ __forceinline__ uint4 load_words(const T* p) {
  return *reinterpret_cast<const uint4*>(p);
}
template <class T>
requires std::is_same_v<T, float> __device__ __forceinline__ void unpack(const uint4& x,
                                                                         float (&v)[4]) {
  v[0] = __uint_as_float(x.x), v[1] = __uint_as_float(x.y);
  v[2] = __uint_as_float(x.z), v[3] = __uint_as_float(x.w);
}
template <Half T>
__device__ __forceinline__ void unpack(const uint4& x, float (&v)[8]) {
  v[0] = low_half<T>(x.x), v[1] = high_half<T>(x.x);
  v[2] = low_half<T>(x.y), v[3] = high_half<T>(x.y);
  v[4] = low_half<T>(x.z), v[5] = high_half<T>(x.z);
  v[6] = low_half<T>(x.w), v[7] = high_half<T>(x.w);
}

template <int N>
__device__ __forceinline__ void load(const float* p, float (&v)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(p + i);
      v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = p[i];
  }
}
template <int N, Half T>
__device__ __forceinline__ void load(const T* p, float (&v)[N]) {
  if constexpr (N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 8) {
      const uint4 x = *reinterpret_cast<const uint4*>(p + i);
      v[i] = low_half<T>(x.x), v[i + 1] = high_half<T>(x.x);
      v[i + 2] = low_half<T>(x.y), v[i + 3] = high_half<T>(x.y);
      v[i + 4] = low_half<T>(x.z), v[i + 5] = high_half<T>(x.z);
      v[i + 6] = low_half<T>(x.w), v[i + 7] = high_half<T>(x.w);
    }
  } else if constexpr (N == 4) {
    const uint2 x = *reinterpret_cast<const uint2*>(p);
    v[0] = low_half<T>(x.x), v[1] = high_half<T>(x.x);
    v[2] = low_half<T>(x.y), v[3] = high_half<T>(x.y);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = low_half<T>(reinterpret_cast<const uint16_t*>(p)[i]);
  }
}

template <int N>
__device__ __forceinline__ void store(float* p, const float (&v)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      store_words(p + i, make_uint4(__float_as_uint(v[i]), __float_as_uint(v[i + 1]),
                                    __float_as_uint(v[i + 2]), __float_as_uint(v[i + 3])));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = v[i];
  }
}
template <int N, Half T>
__device__ __forceinline__ void store(T* p, const float (&v)[N]) {
  if constexpr (N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 8)
      store_words(
          p + i,
          make_uint4(pack_halves<T>(v[i], v[i + 1]), pack_halves<T>(v[i + 2], v[i + 3]),
                     pack_halves<T>(v[i + 4], v[i + 5]), pack_halves<T>(v[i + 6], v[i + 7])));
  } else if constexpr (N == 4) {
    store_words(p, make_uint2(pack_halves<T>(v[0], v[1]), pack_halves<T>(v[2], v[3])));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      reinterpret_cast<uint16_t*>(p)[i] = uint16_t(pack_halves<T>(v[i], 0.0f));
  }
}

template <class T>
__device__ __forceinline__ float load_one(const T* p) {
  float v[1];
  load<1>(p, v);
  return v[0];
}
template <class T>
__device__ __forceinline__ void store_one(T* p, float x) {
  const float v[1] = {x};
  store<1>(p, v);
}
// Returns x rounded to T.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  if constexpr (Half<T>) return low_half<T>(pack_halves<T>(x, 0.0f));
  return x;
}

}  // namespace mtrain::kernels::cuda
