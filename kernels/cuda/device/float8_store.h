// Stores of a kernel's result in 8 bits, for the GEMM that reads it.
#pragma once
#include "base/span.h"
#include "kernels/cuda/device/float8.h"
#include "kernels/cuda/device/vector.h"

namespace mtrain::kernels::cuda {

// A result in 8 bits with a scale.
struct Float8Out {
  uint8_t* data;
  const float* scale;  // null: the result is not written in 8 bits
  bool e5m2;           // else e4m3
};
inline Float8Out float8_out(const Span& result, const ConstSpan& scale) {
  return {scale ? static_cast<uint8_t*>(result.data) : nullptr,
          static_cast<const float*>(scale.data), result.dtype == DType::f8e5m2};
}

// Returns four numbers in 8 bits, each rounded to T first. The bits equal those of quantizing a
// tensor of T.
template <class T>
__device__ __forceinline__ uint32_t float8_word(const float* v, float scale, bool e5m2) {
  float x[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) x[j] = scaled(rounded<T>(v[j]), scale);
  const uint32_t low = e5m2 ? pack_float8<f8e5m2>(x[0], x[1]) : pack_float8<f8e4m3>(x[0], x[1]),
                 high = e5m2 ? pack_float8<f8e5m2>(x[2], x[3]) : pack_float8<f8e4m3>(x[2], x[3]);
  return low | high << 16;
}

// Stores N results that begin at element i, which is a multiple of N. For N > 1, `out.data` must be
// aligned to N bytes.
template <class T, int N>
__device__ __forceinline__ void store_float8(const Float8Out& out, int64_t i, const float (&v)[N],
                                             float scale) {
  if constexpr (N == 8) {
    store_words(out.data + i, make_uint2(float8_word<T>(v, scale, out.e5m2),
                                         float8_word<T>(v + 4, scale, out.e5m2)));
  } else if constexpr (N == 4) {
    *reinterpret_cast<uint32_t*>(out.data + i) = float8_word<T>(v, scale, out.e5m2);
  } else if constexpr (N == 2) {
    const float x = scaled(rounded<T>(v[0]), scale), y = scaled(rounded<T>(v[1]), scale);
    *reinterpret_cast<uint16_t*>(out.data + i) =
        out.e5m2 ? pack_float8<f8e5m2>(x, y) : pack_float8<f8e4m3>(x, y);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float x = scaled(rounded<T>(v[j]), scale);
      out.data[i + j] =
          uint8_t(out.e5m2 ? pack_float8<f8e5m2>(x, 0.0f) : pack_float8<f8e4m3>(x, 0.0f));
    }
  }
}

}  // namespace mtrain::kernels::cuda
