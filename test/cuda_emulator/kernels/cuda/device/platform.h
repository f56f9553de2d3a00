// Stands in for kernels/cuda/device/platform.h: defines the same names on the CPU (grid.h).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "base/dtype.h"
#include "grid.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/dependent_launch.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define MT_BOUNDS(threads)
#define __shared__ static
#define threadIdx (::cpu_grid::here().thread)
#define blockIdx (::cpu_grid::here().block)
#define blockDim (::cpu_grid::here().block_size)
#define gridDim (::cpu_grid::here().grid_size)

struct CUstream_st;
using dim3 = cpu_grid::Dim;
using cudaStream_t = CUstream_st*;

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) int2 {
  int32_t x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline int2 make_int2(int32_t x, int32_t y) { return {x, y}; }

inline float __uint_as_float(uint32_t u) { return std::bit_cast<float>(u); }
inline uint32_t __float_as_uint(float f) { return std::bit_cast<uint32_t>(f); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = x | uint64_t(y) << 32;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= uint32_t(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return picked;
}
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
using std::isfinite;
using std::max;
using std::min;
// Threads switch only where they wait.
inline int atomicMax(int* at, int x) {
  const int before = *at;
  *at = std::max(before, x);
  return before;
}
inline int atomicAdd(int* at, int x) {
  const int before = *at;
  *at = before + x;
  return before;
}

inline void __syncthreads() { cpu_grid::wait_for_block("__syncthreads"); }
inline void __syncwarp() { cpu_grid::wait_for_warp("__syncwarp"); }
inline int __syncthreads_or(int x) {
  const int* values = cpu_grid::exchange_in_block("__syncthreads_or", x);
  const auto& size = cpu_grid::here().block_size;
  for (unsigned i = 0; i < size.x * size.y * size.z; ++i)
    if (values[i]) return 1;
  return 0;
}
template <class V>
V exchanged(const char* operation, unsigned mask, V x, int from) {
  if (mask != 0xffffffffu) cpu_grid::stop("an exchange of part of a warp");
  const unsigned char* values = cpu_grid::exchange(operation, &x, sizeof x);
  V got;
  std::memcpy(&got, values + size_t(from) * cpu_grid::kExchangeBytes, sizeof got);
  return got;
}
template <class V>
V __shfl_xor_sync(unsigned mask, V x, int lanes) {
  return exchanged("__shfl_xor_sync", mask, x, cpu_grid::lane() ^ lanes);
}
template <class V>
V __shfl_sync(unsigned mask, V x, int from) {
  return exchanged("__shfl_sync", mask, x, from % 32);
}
inline unsigned __ballot_sync(unsigned, int x) {
  const unsigned char* values = cpu_grid::exchange("__ballot_sync", &x, sizeof x);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; ++i) {
    int got;
    std::memcpy(&got, values + i * cpu_grid::kExchangeBytes, sizeof got);
    bits |= unsigned(got != 0) << i;
  }
  return bits;
}

namespace mtrain::kernels::cuda {

inline constexpr bool kBlackwell = false;

#define MT_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
  ::mtrain::kernels::cuda::launch(MT_PLACE(#kernel), false, kernel, grid, block, size_t(shared), \
                                  stream, __VA_ARGS__)
#define MT_LAUNCH_DEPENDENT(kernel, grid, block, shared, stream, ...)                           \
  ::mtrain::kernels::cuda::launch(MT_PLACE(#kernel), true, kernel, grid, block, size_t(shared), \
                                  stream, __VA_ARGS__)

template <class... Parameters, class... Args>
void launch(const Place& at, bool waits, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared, CUstream_st*, const Args&... args) {
  if (waits) launches_dependent(reinterpret_cast<const void*>(kernel));  // counts it
  const std::tuple<Parameters...> values{Parameters(args)...};
  cpu_grid::run_grid(at.call, grid, block, shared, [&] {
    std::apply(kernel, values);
    cpu_grid::end_of_thread(waits);
  });
}

inline void wait_for_previous_kernel() { cpu_grid::wait_for_previous_kernel(); }

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(cpu_grid::shared_memory());
}

inline uint32_t pack_bf16(float low, float high) {
  return bf16(low).bits | uint32_t(bf16(high).bits) << 16;
}
inline uint32_t pack_f16(float low, float high) {
  return f16(low).bits | uint32_t(f16(high).bits) << 16;
}
inline float f16_low(uint32_t pair) { return float(std::bit_cast<f16>(uint16_t(pair))); }
inline float f16_high(uint32_t pair) { return f16_low(pair >> 16); }
template <class Y>
uint16_t pack_float8(float low, float high) {
  return uint16_t(Y(low).bits | Y(high).bits << 8);
}
inline uint32_t f16_of_e4m3(uint32_t pair) {
  return pack_f16(float(std::bit_cast<f8e4m3>(uint8_t(pair))),
                  float(std::bit_cast<f8e4m3>(uint8_t(pair >> 8))));
}
inline void store_words(void* p, uint4 x) { *static_cast<uint4*>(p) = x; }
inline void store_words(void* p, uint2 x) { *static_cast<uint2*>(p) = x; }
inline float fast_reciprocal(float x) { return 1.0f / x; }
inline float fast_exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}

// The fragments as the instruction's definition gives them (PTX ISA, mma.m16n8k16).
template <class Half>  // returns element i % 2 of a pair
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const Half& half) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine, of[32];
  std::memcpy(mine.a, a, sizeof mine.a);
  mine.b[0] = b0, mine.b[1] = b1;
  const unsigned char* all = cpu_grid::exchange("mma", &mine, sizeof mine);
  for (size_t i = 0; i < 32; ++i)
    std::memcpy(&of[i], all + i * cpu_grid::kExchangeBytes, sizeof mine);
  const int lane = cpu_grid::lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const float x = half(of[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k);
      const float y = half(of[column * 4 + k % 8 / 2].b[k / 8], k);
      sum += x * y;
    }
    c[i] += sum;
  }
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(c, a, b0, b1, [](uint32_t pair, int i) {
    return std::bit_cast<float>(i % 2 ? pair & 0xffff0000u : pair << 16);
  });
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(c, a, b0, b1, [](uint32_t pair, int i) { return i % 2 ? f16_high(pair) : f16_low(pair); });
}

template <bool TRANS>
void load_matrices(uint32_t (&m)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) cpu_grid::stop("a matrix row that is not aligned");
  const unsigned char* all = cpu_grid::exchange("ldmatrix", &row, sizeof row);
  const int lane = cpu_grid::lane();
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int j = 0; j < 2; ++j) {
      const int r = TRANS ? lane % 4 * 2 + j : lane / 4, c = TRANS ? lane / 4 : lane % 4 * 2 + j;
      const uint16_t* from;
      std::memcpy(&from, all + size_t(i * 8 + r) * cpu_grid::kExchangeBytes, sizeof from);
      pair[j] = from[c];
    }
    m[i] = pair[0] | uint32_t(pair[1]) << 16;
  }
}

inline void copy_async(void* shared, const void* global, bool valid) {
  cpu_grid::copy_later(shared, global, 16, valid);
}
inline void copy_async_commit() { cpu_grid::commit_copies(); }
template <int N>
void copy_async_wait() {
  cpu_grid::wait_for_copies(N);
}

}  // namespace mtrain::kernels::cuda
