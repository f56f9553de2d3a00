#include "kernels/fp8.h"

#include <cmath>

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostBlocks = 1024;  // four results a thread of the last launch

// 0 where x is not finite.
__device__ __forceinline__ float finite_size(float x) { return isfinite(x) ? fabsf(x) : 0.0f; }

// For every thread of the block.
__device__ __forceinline__ float block_max(float x) {
  __shared__ float slots[kWarp];
  x = warp_max(x);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  if (lane == 0) slots[warp] = x;
  __syncthreads();
  x = warp_max(lane < kWarps ? slots[lane] : 0.0f);
  __syncthreads();  // slots may be written again
  return x;
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    partial_amax(const T* x, int64_t count, float* partials) {
  float most = 0;
  for_loaded_vectors<N, 4>(x, count, [&](auto lanes, int64_t, const auto& v) {
    constexpr int L = decltype(lanes)::value;
#pragma unroll
    for (int j = 0; j < L; ++j) most = fmaxf(most, finite_size(v[j]));
  });
  most = block_max(most);
  if (threadIdx.x == 0) partials[blockIdx.x] = most;
}

struct ScaleRule {
  float largest, factor;  // of the type; of the margin
};
ScaleRule rule_of(DType type, int margin) {
  return {largest_float8(type), std::ldexp(1.0f, -margin)};
}
// Of the smallest amaxes it would be beyond fp32, or its inverse below.
__device__ __forceinline__ void put_scale(float amax, ScaleRule rule, float otherwise, float* scale,
                                          float* inverse) {
  const float s = amax > 0 ? fminf(rule.largest / amax * rule.factor, 0x1p126f) : otherwise;
  *scale = s;
  *inverse = 1.0f / s;
}

__global__ void __launch_bounds__(kThreads)
    last_amax(const float* partials, int n, float* amax, bool keep_larger, float* scale,
              float* inverse, ScaleRule rule) {
  float most = 0;
  for (int i = int(threadIdx.x); i < n; i += kThreads) most = fmaxf(most, partials[i]);
  most = block_max(most);
  if (threadIdx.x != 0) return;
  if (keep_larger) most = fmaxf(most, *amax);
  *amax = most;
  if (scale) put_scale(most, rule, 1.0f, scale, inverse);
}

__device__ __forceinline__ float scaled(float x, float scale) {
  return isfinite(x) ? x * scale : __uint_as_float(0x7fc00000u);
}
template <class Y, int N>
__device__ __forceinline__ void pack(const float (&v)[N], float scale, uint32_t (&packed)[N / 4],
                                     float& most) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const float* w = v + 4 * i;
    packed[i] = uint32_t(pack_float8<Y>(scaled(w[0], scale), scaled(w[1], scale))) |
                uint32_t(pack_float8<Y>(scaled(w[2], scale), scaled(w[3], scale))) << 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) most = fmaxf(most, finite_size(w[j]));
  }
}
template <class Y>
__device__ __forceinline__ uint8_t pack_one(float x, float scale, float& most) {
  most = fmaxf(most, finite_size(x));
  return uint8_t(pack_float8<Y>(scaled(x, scale), 0.0f));
}

// VECTORS: 16 elements a thread, addresses on 16-byte borders.
template <class Y, bool VECTORS, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_flat(const T* x, const float* scale_at, uint8_t* y, int64_t count, float* partials) {
  const float scale = *scale_at;
  float most = 0;
  for_vectors<VECTORS ? 16 : 1>(count, [&](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float v[L];
    load<L>(x + i, v);
    if constexpr (L == 16) {
      uint32_t q[4];
      pack<Y>(v, scale, q, most);
      store_words(y + i, make_uint4(q[0], q[1], q[2], q[3]));
    } else {
      y[i] = pack_one<Y>(v[0], scale, most);
    }
  });
  if (!partials) return;
  most = block_max(most);
  if (threadIdx.x == 0) partials[blockIdx.x] = most;
}

// Blocks take tiles of 64 x 64 in turn: a thread reads 8 elements of a row at a time, and writes 16
// of a row of the transpose. VECTORS: N a multiple of 8, x on 16-byte borders and y on 8-byte ones;
// stride is a multiple of 16 and y_NT on 16-byte borders in any case.
constexpr int kTile = 64;
constexpr int kPitch =
    kTile + 4;  // bytes; 17 words, so that the columns of a row lie in many banks

template <class Y, bool VECTORS, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_both(const T* x, const float* scale_at, uint8_t* y, uint8_t* transposed, int64_t rows,
                  int64_t columns, int64_t stride, float* partials) {
  __shared__ uint32_t tile[kTile * kPitch / 4];  // [column][row]
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(tile);
  const float scale = *scale_at;
  float most = 0;
  const int64_t across = (columns + kTile - 1) / kTile, down = (stride + kTile - 1) / kTile;
  for (int64_t at = blockIdx.x; at < across * down; at += gridDim.x) {
    const int64_t row0 = at / across * kTile, column0 = at % across * kTile;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = half * (kTile / 2) + int(threadIdx.x) / 8, c = int(threadIdx.x) % 8 * 8;
      const int64_t row = row0 + r, column = column0 + c;
      if (VECTORS) {
        uint32_t q[2] = {0, 0};
        if (row < rows && column < columns) {
          float v[8];
          load<8>(x + row * columns + column, v);
          pack<Y>(v, scale, q, most);
          if (y) store_words(y + row * columns + column, uint2{q[0], q[1]});
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) bytes[(c + j) * kPitch + r] = uint8_t(q[j / 4] >> j % 4 * 8);
      } else {
        for (int j = 0; j < 8; ++j) {
          uint8_t q = 0;
          if (row < rows && column + j < columns) {
            q = pack_one<Y>(load_one(x + row * columns + column + j), scale, most);
            if (y) y[row * columns + column + j] = q;
          }
          bytes[(c + j) * kPitch + r] = q;
        }
      }
    }
    __syncthreads();
    const int c = int(threadIdx.x) / 4, r = int(threadIdx.x) % 4 * 16;
    if (column0 + c < columns && row0 + r < stride) {
      const uint32_t* from = tile + (c * kPitch + r) / 4;
      store_words(transposed + (column0 + c) * stride + row0 + r,
                  make_uint4(from[0], from[1], from[2], from[3]));
    }
    __syncthreads();  // the tile may be written again
  }
  if (!partials) return;
  most = block_max(most);
  if (threadIdx.x == 0) partials[blockIdx.x] = most;
}

__global__ void update_scales(float* amax, float* history, int64_t tensors, int64_t length,
                              int64_t place, bool most_recent, ScaleRule rule, float* scale,
                              float* inverse) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= tensors) return;
  float* const ring = history + i * length;
  ring[place] = amax[i];
  float decides = amax[i];
  for (int64_t l = 0; !most_recent && l < length; ++l) decides = fmaxf(decides, ring[l]);
  amax[i] = 0;
  put_scale(decides, rule, scale[i], scale + i, inverse + i);
}

}  // namespace

void run(const Amax& a, CUstream_st* stream) {
  with_float(a.x.dtype, [&]<class T>() {
    with_width<T>(aligned({a.x.data}), [&]<int N>() {
      const unsigned blocks = blocks_for(a.x.count, int64_t(kThreads) * N * 4, kMostBlocks);
      const Scratch<float> partials(blocks, stream);
      MT_LAUNCH((partial_amax<N, T>), blocks, kThreads, 0, stream, data<T>(a.x), a.x.count,
                partials.get());
      MT_LAUNCH(last_amax, 1, kThreads, 0, stream, partials.get(), int(blocks), data<float>(a.amax),
                false, data<float>(a.scale), data<float>(a.inverse), rule_of(a.type, a.margin));
    });
  });
}

void run(const Quantize& a, CUstream_st* stream) {
  const int64_t count = a.T * a.N;
  if (a.N == 0 || (a.T == 0 && a.stride == 0)) return;
  const bool vectors = aligned({a.x_TN.data, a.y_TN.data}) && (!a.y_NT || a.N % 8 == 0);
  const unsigned blocks =
      a.y_NT ? blocks_for(div_up(a.N, kTile) * div_up(a.stride, kTile), 1, kMostBlocks)
             : blocks_for(count, int64_t(kThreads) * (vectors ? 16 : 1) * 2, kMostBlocks);
  const Scratch<float> partials(a.amax ? blocks : 0, stream);
  with_float8(a.y_TN ? a.y_TN.dtype : a.y_NT.dtype, [&]<class Y>() {
    with_float(a.x_TN.dtype, [&]<class T>() {
      const auto launch_with = [&]<bool VECTORS>() {
        if (a.y_NT)
          MT_LAUNCH((quantize_both<Y, VECTORS, T>), blocks, kThreads, 0, stream, data<T>(a.x_TN),
                    data<float>(a.scale), data<uint8_t>(a.y_TN), data<uint8_t>(a.y_NT), a.T, a.N,
                    a.stride, partials.get());
        else
          MT_LAUNCH((quantize_flat<Y, VECTORS, T>), blocks, kThreads, 0, stream, data<T>(a.x_TN),
                    data<float>(a.scale), data<uint8_t>(a.y_TN), count, partials.get());
      };
      if (vectors)
        launch_with.template operator()<true>();
      else
        launch_with.template operator()<false>();
    });
  });
  if (!a.amax) return;
  float* const none = nullptr;
  MT_LAUNCH(last_amax, 1, kThreads, 0, stream, partials.get(), int(blocks), data<float>(a.amax),
            true, none, none, ScaleRule{});
}

void run(const UpdateScales& a, CUstream_st* stream) {
  if (a.C == 0) return;
  MT_LAUNCH(update_scales, blocks_for(a.C, kThreads), kThreads, 0, stream, data<float>(a.amax_C),
            data<float>(a.history_CL), a.C, a.L, a.place, a.most_recent, rule_of(a.type, a.margin),
            data<float>(a.scale_C), data<float>(a.inverse_C));
}

}  // namespace mtrain::kernels::cuda
