// Loads and stores of N consecutive elements as floats: 16 bytes an access where N allows.
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

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// A vector as it lies in memory: bf16 takes half the registers that its floats would.
template <class T>
__device__ __forceinline__ uint4 load_words(const T* p) {
  return *reinterpret_cast<const uint4*>(p);
}
__device__ __forceinline__ void unpack(const uint4& x, float (&v)[4]) {
  v[0] = __uint_as_float(x.x), v[1] = __uint_as_float(x.y);
  v[2] = __uint_as_float(x.z), v[3] = __uint_as_float(x.w);
}
__device__ __forceinline__ void unpack(const uint4& x, float (&v)[8]) {
  v[0] = bf16_low(x.x), v[1] = bf16_high(x.x), v[2] = bf16_low(x.y), v[3] = bf16_high(x.y);
  v[4] = bf16_low(x.z), v[5] = bf16_high(x.z), v[6] = bf16_low(x.w), v[7] = bf16_high(x.w);
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
template <int N>
__device__ __forceinline__ void load(const bf16* p, float (&v)[N]) {
  if constexpr (N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 8) {
      const uint4 x = *reinterpret_cast<const uint4*>(p + i);
      v[i] = bf16_low(x.x), v[i + 1] = bf16_high(x.x);
      v[i + 2] = bf16_low(x.y), v[i + 3] = bf16_high(x.y);
      v[i + 4] = bf16_low(x.z), v[i + 5] = bf16_high(x.z);
      v[i + 6] = bf16_low(x.w), v[i + 7] = bf16_high(x.w);
    }
  } else if constexpr (N == 4) {
    const uint2 x = *reinterpret_cast<const uint2*>(p);
    v[0] = bf16_low(x.x), v[1] = bf16_high(x.x), v[2] = bf16_low(x.y), v[3] = bf16_high(x.y);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = bf16_low(reinterpret_cast<const uint16_t*>(p)[i]);
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
template <int N>
__device__ __forceinline__ void store(bf16* p, const float (&v)[N]) {
  if constexpr (N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 8)
      store_words(p + i, make_uint4(pack_bf16(v[i], v[i + 1]), pack_bf16(v[i + 2], v[i + 3]),
                                    pack_bf16(v[i + 4], v[i + 5]), pack_bf16(v[i + 6], v[i + 7])));
  } else if constexpr (N == 4) {
    store_words(p, make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) reinterpret_cast<uint16_t*>(p)[i] = uint16_t(pack_bf16(v[i], 0.0f));
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
  if constexpr (sizeof(T) == 2) return bf16_low(pack_bf16(x, 0.0f));
  return x;
}

}  // namespace mtrain::kernels::cuda
