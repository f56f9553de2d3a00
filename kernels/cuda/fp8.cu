#include "kernels/fp8.h"

#include <cmath>

#include "kernels/cuda/device/float8.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxBlocks = 1024;  // a thread of the last launch then combines four results

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    partial_amax(const T* x, int64_t count, float* partials) {
  wait_for_previous_kernel();
  float most = 0;
  for_loaded_vectors<N, 4>(x, count, [&](auto lanes, int64_t, const auto& v) {
    constexpr int L = decltype(lanes)::value;
#pragma unroll
    for (int j = 0; j < L; ++j) most = fmaxf(most, finite_size(v[j]));
  });
  most = block_max<kWarps>(most);
  if (threadIdx.x == 0) partials[blockIdx.x] = most;
}

struct ScaleRule {
  float largest, factor;  // largest number of the type; factor from the margin
};
ScaleRule rule_of(DType type, int margin) {
  return {largest_float8(type), std::ldexp(1.0f, -margin)};
}
// For the smallest amaxes the scale would overflow fp32, or its inverse underflow.
__device__ __forceinline__ void put_scale(float amax, ScaleRule rule, float otherwise, float* scale,
                                          float* inverse) {
  const float s = amax > 0 ? fminf(rule.largest / amax * rule.factor, 0x1p126f) : otherwise;
  *scale = s;
  *inverse = 1.0f / s;
}

__global__ void __launch_bounds__(kThreads)
    last_amax(const float* partials, int n, float* amax, bool keep_larger, float* scale,
              float* inverse, ScaleRule rule) {
  wait_for_previous_kernel();
  float most = 0;
  for (int i = int(threadIdx.x); i < n; i += kThreads) most = fmaxf(most, partials[i]);
  most = block_max<kWarps>(most);
  if (threadIdx.x != 0) return;
  if (keep_larger) most = fmaxf(most, *amax);
  *amax = most;
  if (scale) put_scale(most, rule, 1.0f, scale, inverse);
}

__global__ void scale_from_amax(float* amax, float* scale, float* inverse, ScaleRule rule) {
  wait_for_previous_kernel();
  put_scale(*amax, rule, 1.0f, scale, inverse);
  *amax = 0;
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

// With VECTORS a thread has 16 elements, and addresses are multiples of 16 bytes.
template <class Y, bool VECTORS, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_flat(const T* x, const float* scale_at, uint8_t* y, int64_t count, float* partials) {
  wait_for_previous_kernel();
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
  most = block_max<kWarps>(most);
  if (threadIdx.x == 0) partials[blockIdx.x] = most;
}

// Blocks of quantize_both() on one multiprocessor. Before sm_89 software converts to 8 bits, which
// takes more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
constexpr int kBlocks = 2;
#else
constexpr int kBlocks = 3;
#endif

// A thread's patch of a tile has 16 columns (a 16-byte access of y) and 4 rows (a word of the
// transpose).
constexpr int kPatchRows = 4, kPatchColumns = 16;
constexpr int kTile = 128;
static_assert(kTile * kTile == kThreads * kPatchRows * kPatchColumns);

// Quantizes a patch; elements outside of the tensor are 0. N is a multiple of 16, and x and y are
// aligned to 16 bytes. All loads of the patch come before its first store, since the compiler
// cannot move loads across it.
template <class Y, class T>
__device__ __forceinline__ void quantize_patch(const T* x, uint8_t* y, int64_t row, int64_t column,
                                               int64_t rows, int64_t columns, float scale,
                                               float& most, uint32_t (&q)[kPatchRows][4]) {
  if constexpr (std::is_same_v<T, uint8_t>) {  // already in 8 bits
#pragma unroll
    for (int i = 0; i < kPatchRows; ++i) {
      const uint4 w = row + i < rows && column < columns
                          ? load_words(x + (row + i) * columns + column)
                          : make_uint4(0, 0, 0, 0);
      q[i][0] = w.x, q[i][1] = w.y, q[i][2] = w.z, q[i][3] = w.w;
    }
    return;
  } else {
    constexpr int kWide = kVector<T>, kLoads = kPatchColumns / kWide;
    uint4 words[kPatchRows][kLoads];
#pragma unroll
    for (int i = 0; i < kPatchRows; ++i)
#pragma unroll
      for (int k = 0; k < kLoads; ++k)
        words[i][k] = row + i < rows && column < columns
                          ? load_words(x + (row + i) * columns + column + k * kWide)
                          : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kPatchRows; ++i) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        float v[kWide];
        uint32_t part[kWide / 4];
        unpack<T>(words[i][k], v);
        pack<Y>(v, scale, part, most);
#pragma unroll
        for (int j = 0; j < kWide / 4; ++j) q[i][k * kWide / 4 + j] = part[j];
      }
      if (y && row + i < rows && column < columns)
        store_words(y + (row + i) * columns + column,
                    make_uint4(q[i][0], q[i][1], q[i][2], q[i][3]));
    }
  }
}

// An 8-bit T is only transposed: it has no scale, and its maximum is not computed.
//
// Block b takes the tiles b, b + gridDim.x, .... With VECTORS the conditions of quantize_patch()
// hold; stride is always a multiple of 16, and y_NT is always aligned to 16 bytes. The tile is in
// shared memory as [column][16 rows]. The eight 16-byte chunks of a column are permuted by the
// column's eighth of the tile. A warp writes words of 8 such eighths, and a quarter of a warp reads
// a full column: both then access every bank once.
template <class Y, bool VECTORS, class T>
__global__ void __launch_bounds__(kThreads, VECTORS && sizeof(T) <= 2 ? kBlocks : 2)
    quantize_both(const T* x, const float* scale_at, uint8_t* y, uint8_t* transposed, int64_t rows,
                  int64_t columns, int64_t stride, float* partials) {
  wait_for_previous_kernel();
  constexpr int kAcross = kTile / kPatchColumns, kChunks = kTile / 16;
  __shared__ uint4 tile[kTile * kChunks];
  uint32_t* const words = reinterpret_cast<uint32_t*>(tile);
  const auto place = [](int column, int chunk) {
    return column * kChunks + (chunk ^ column / kPatchColumns);
  };
  const int thread = int(threadIdx.x);
  constexpr bool kFloats = !std::is_same_v<T, uint8_t>;
  float most = 0;
  const unsigned across = unsigned((columns + kTile - 1) / kTile),
                 tiles = across * unsigned((stride + kTile - 1) / kTile);
  for (unsigned number = blockIdx.x; number < tiles; number += gridDim.x) {
    const int64_t row0 = int64_t(number / across) * kTile,
                  column0 = int64_t(number % across) * kTile;
    if constexpr (VECTORS) {
      const int c = thread % kAcross * kPatchColumns, r = thread / kAcross * kPatchRows;
      uint32_t q[kPatchRows][4];
      // Reloaded for each tile, since it would take a register that the other values need.
      const float scale = kFloats ? *scale_at : 1.0f;
      quantize_patch<Y>(x, y, row0 + r, column0 + c, rows, columns, scale, most, q);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        transpose_bytes(q[0][w], q[1][w], q[2][w], q[3][w]);
#pragma unroll
        for (int i = 0; i < 4; ++i) words[4 * place(c + 4 * w + i, r / 16) + r % 16 / 4] = q[i][w];
      }
    } else {
      const float scale = kFloats ? *scale_at : 1.0f;
      for (int e = thread; e < kTile * kTile; e += kThreads) {
        const int r = e / kTile, c = e % kTile;
        const int64_t at = (row0 + r) * columns + column0 + c;
        uint8_t q = 0;
        if (row0 + r < rows && column0 + c < columns) {
          if constexpr (kFloats)
            q = pack_one<Y>(load_one(x + at), scale, most);
          else
            q = x[at];
          if (y) y[at] = q;
        }
        reinterpret_cast<uint8_t*>(tile + place(c, r / 16))[r % 16] = q;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile * kChunks / kThreads; ++i) {
      const int c = thread / kChunks + i * (kThreads / kChunks), chunk = thread % kChunks;
      if (column0 + c < columns && row0 + 16 * chunk < stride)
        store_words(transposed + (column0 + c) * stride + row0 + 16 * chunk, tile[place(c, chunk)]);
    }
    __syncthreads();  // the tile may be written again
  }
  if (!partials) return;
  most = block_max<kWarps>(most);
  if (threadIdx.x == 0) partials[blockIdx.x] = most;
}

__global__ void update_scales(const float* grad_scale, float* amax, float* history, int64_t tensors,
                              int64_t length, int64_t place, bool most_recent, ScaleRule rule,
                              float* scale, float* inverse) {
  wait_for_previous_kernel();
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= tensors) return;
  float* const ring = history + i * length;
  if (grad_scale && !isfinite(*grad_scale)) {
    float known = 0;
    for (int64_t l = 0; l < length; ++l) known = fmaxf(known, ring[l]);
    if (known > 0 || !isfinite(amax[i])) {
      amax[i] = 0;
      return;
    }
  }
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
      const unsigned blocks = blocks_for(a.x.count, int64_t(kThreads) * N * 4, kMaxBlocks);
      const Scratch<float> partials(blocks, stream);
      MT_LAUNCH_DEPENDENT((partial_amax<N, T>), blocks, kThreads, 0, stream, data<T>(a.x),
                          a.x.count, partials.get());
      MT_LAUNCH_DEPENDENT(last_amax, 1, kThreads, 0, stream, partials.get(), int(blocks),
                          data<float>(a.amax), false, data<float>(a.scale), data<float>(a.inverse),
                          rule_of(a.type, a.margin));
    });
  });
}

void run(const ScaleFromAmax& a, CUstream_st* stream) {
  MT_LAUNCH_DEPENDENT(scale_from_amax, 1, 1, 0, stream, data<float>(a.amax), data<float>(a.scale),
                      data<float>(a.inverse), rule_of(a.type, a.margin));
}

void run(const Quantize& a, CUstream_st* stream) {
  const int64_t count = a.T * a.N;
  if (a.N == 0 || (a.T == 0 && a.stride == 0)) return;
  const bool vectors = aligned({a.x_TN.data, a.y_TN.data}) && (!a.y_NT || a.N % kPatchColumns == 0);
  const unsigned blocks =
      a.y_NT ? blocks_for(div_up(a.N, kTile) * div_up(a.stride, kTile), 1, kMaxBlocks)
             : blocks_for(count, int64_t(kThreads) * (vectors ? 16 : 1) * 2, kMaxBlocks);
  const Scratch<float> partials(a.amax ? blocks : 0, stream);
  with_float8(a.y_TN ? a.y_TN.dtype : a.y_NT.dtype, [&]<class Y>() {
    with_float(a.x_TN.dtype, [&]<class T>() {
      const auto launch_with = [&]<bool VECTORS>() {
        if (a.y_NT)
          MT_LAUNCH_DEPENDENT((quantize_both<Y, VECTORS, T>), blocks, kThreads, 0, stream,
                              data<T>(a.x_TN), data<float>(a.scale), data<uint8_t>(a.y_TN),
                              data<uint8_t>(a.y_NT), a.T, a.N, a.stride, partials.get());
        else
          MT_LAUNCH_DEPENDENT((quantize_flat<Y, VECTORS, T>), blocks, kThreads, 0, stream,
                              data<T>(a.x_TN), data<float>(a.scale), data<uint8_t>(a.y_TN), count,
                              partials.get());
      };
      if (vectors)
        launch_with.template operator()<true>();
      else
        launch_with.template operator()<false>();
    });
  });
  if (!a.amax) return;
  float* const none = nullptr;
  MT_LAUNCH_DEPENDENT(last_amax, 1, kThreads, 0, stream, partials.get(), int(blocks),
                      data<float>(a.amax), true, none, none, ScaleRule{});
}

void run(const TransposeFloat8& a, CUstream_st* stream) {
  if (a.N == 0 || a.stride == 0) return;
  const unsigned blocks = blocks_for(div_up(a.N, kTile) * div_up(a.stride, kTile), 1, kMaxBlocks);
  const float* const no_scale = nullptr;
  uint8_t* const no_rows = nullptr;
  float* const no_maximum = nullptr;
  const auto launch_with = [&]<bool VECTORS>() {
    MT_LAUNCH_DEPENDENT((quantize_both<f8e4m3, VECTORS, uint8_t>), blocks, kThreads, 0, stream,
                        data<uint8_t>(a.x_TN), no_scale, no_rows, data<uint8_t>(a.y_NT), a.T, a.N,
                        a.stride, no_maximum);
  };
  if (aligned({a.x_TN.data}) && a.N % kPatchColumns == 0)
    launch_with.template operator()<true>();
  else
    launch_with.template operator()<false>();
}

void run(const UpdateScales& a, CUstream_st* stream) {
  if (a.C == 0) return;
  MT_LAUNCH_DEPENDENT(update_scales, blocks_for(a.C, kThreads), kThreads, 0, stream,
                      data<float>(a.grad_scale), data<float>(a.amax_C), data<float>(a.history_CL),
                      a.C, a.L, a.place, a.most_recent, rule_of(a.type, a.margin),
                      data<float>(a.scale_C), data<float>(a.inverse_C));
}

}  // namespace mtrain::kernels::cuda
