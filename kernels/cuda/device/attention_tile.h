// Tiles of attention in shared memory, as fp32, for the plain kernels: as many rows as keys, 128
// threads as 8 by 16.
#pragma once
#include "kernels/cuda/device/attention_mask.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/vector.h"

namespace mtrain::kernels::cuda {

constexpr int kTileThreads = 128, kAcross = 16;

// DIM: heads of up to this many elements. ROWS: rows and keys of a tile.
template <int DIM_, int ROWS_>
struct TileSizes {
  static constexpr int DIM = DIM_, ROWS = ROWS_;
  // Elements of the score tile per thread.
  static constexpr int kMyRows = ROWS * kAcross / kTileThreads, kMyColumns = ROWS / kAcross;
  static constexpr int kScoreStride = ROWS + 1;
  // Padded so that 16-byte accesses of different rows use different banks.
  static constexpr int kStride = DIM + 4, kFloats = ROWS * kStride;

  // Return the row and the column in the tile of scores of this thread's element (i, j).
  __device__ __forceinline__ static int my_row(int i) {
    return int(threadIdx.x) / kAcross * kMyRows + i;
  }
  __device__ __forceinline__ static int my_column(int j) {
    return int(threadIdx.x) % kAcross + j * kAcross;
  }
};
// Heads of more than 128 elements need more shared memory than GPUs of compute capability 8.6, 8.9
// and 12.0 have, unless tiles are small.
constexpr int kTile = 32, kSmallTile = 16;

// Heads in fp32, bf16 or fp16: one kernel supports all types.
struct AnyRows {
  char* data;
  int64_t stride;
  DType dtype;
  __device__ __forceinline__ float get(int64_t row, int d) const {
    const int64_t i = row * stride + d;
    if (dtype == DType::bf16) return load_one(reinterpret_cast<const bf16*>(data) + i);
    if (dtype == DType::f16) return load_one(reinterpret_cast<const f16*>(data) + i);
    return reinterpret_cast<const float*>(data)[i];
  }
  __device__ __forceinline__ void set(int64_t row, int d, float x) const {
    const int64_t i = row * stride + d;
    if (dtype == DType::bf16)
      store_one(reinterpret_cast<bf16*>(data) + i, x);
    else if (dtype == DType::f16)
      store_one(reinterpret_cast<f16*>(data) + i, x);
    else
      reinterpret_cast<float*>(data)[i] = x;
  }
};
struct AnyHeads {
  char* data;
  int64_t token_stride;
  int B, D;
  DType dtype;
  __device__ __forceinline__ AnyRows of(int b, int head) const {
    const int64_t first = b * token_stride + int64_t(head) * D;
    return {data + first * (dtype == DType::f32 ? 4 : 2), B * token_stride, dtype};
  }
  // Returns the index of a head's first element in a row.
  __device__ __forceinline__ int64_t element(int b, int head, int row) const {
    return (int64_t(row) * B + b) * token_stride + int64_t(head) * D;
  }
};
template <class View>
AnyHeads any_heads(const View& v, const AttentionShape& s) {
  return {static_cast<char*>(const_cast<void*>(static_cast<const void*>(v.data.data))),
          v.token_stride, int(s.B), int(s.D), v.data.dtype};
}

template <class S>
struct Tile {
  float* at;
  __device__ __forceinline__ float* row(int i) const { return at + i * S::kStride; }
};

// Loads the rows of x, starting at `first`; elements beyond `rows` and D become 0.
template <class S>
__device__ __forceinline__ void fill_tile(const Tile<S>& tile, const AnyRows& x, int first,
                                          int rows, int D) {
  for (int i = int(threadIdx.x); i < S::ROWS * S::DIM; i += kTileThreads) {
    const int r = i / S::DIM, d = i % S::DIM;
    tile.row(r)[d] = first + r < rows && d < D ? x.get(first + r, d) : 0.0f;
  }
}

// s = rows of a times rows of b.
template <class S>
__device__ __forceinline__ void multiply(const Tile<S>& a, const Tile<S>& b,
                                         float (&s)[S::kMyRows][S::kMyColumns]) {
  constexpr int kMyRows = S::kMyRows, kMyColumns = S::kMyColumns;
#pragma unroll
  for (int i = 0; i < kMyRows; ++i)
#pragma unroll
    for (int j = 0; j < kMyColumns; ++j) s[i][j] = 0;
#pragma unroll 4
  for (int d = 0; d < S::DIM; d += 4) {
    float x[kMyRows][4], y[kMyColumns][4];
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) load<4>(a.row(S::my_row(i)) + d, x[i]);
#pragma unroll
    for (int j = 0; j < kMyColumns; ++j) load<4>(b.row(S::my_column(j)) + d, y[j]);
#pragma unroll
    for (int i = 0; i < kMyRows; ++i)
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) s[i][j] += x[i][k] * y[j][k];
  }
}

// A thread's rows of a (ROWS, DIM) accumulator: columns 4 across, every 64.
template <class S>
struct Sums {
  static constexpr int kParts = S::DIM / (4 * kAcross), kMyRows = S::kMyRows;
  float at[kMyRows][kParts][4];

  __device__ __forceinline__ static int column(int part) {
    return int(threadIdx.x) % kAcross * 4 + part * 4 * kAcross;
  }
  // += weights (or their transpose) times the tile: weight(row, k) of k < ROWS.
  template <class Weight>
  __device__ __forceinline__ void add(const Tile<S>& tile, const Weight& weight) {
#pragma unroll 4
    for (int k = 0; k < S::ROWS; ++k) {
      float w[kMyRows];
#pragma unroll
      for (int i = 0; i < kMyRows; ++i) w[i] = weight(S::my_row(i), k);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        float x[4];
        load<4>(tile.row(k) + column(p), x);
#pragma unroll
        for (int i = 0; i < kMyRows; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) at[i][p][c] += w[i] * x[c];
      }
    }
  }
  // Sets the rows of x, starting at `first`, to factor(i) * sums, or adds this with `add`. Calls
  // stored(row, d, x) with each element after rounding to x's type.
  template <class Factor, class Stored>
  __device__ __forceinline__ void put(const AnyRows& x, int first, int rows, int D, bool add,
                                      const Factor& factor, const Stored& stored) const {
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
      const int r = first + S::my_row(i);
      if (r >= rows) continue;
#pragma unroll
      for (int p = 0; p < kParts; ++p)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int d = column(p) + c;
          if (d >= D) continue;
          const float value = at[i][p][c] * factor(i);
          x.set(r, d, add ? x.get(r, d) + value : value);
          stored(r, d, x.get(r, d));
        }
    }
  }
};

// Reductions over the 16 threads that share rows.
__device__ __forceinline__ float across_max(float x) {
#pragma unroll
  for (int i = kAcross / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}
__device__ __forceinline__ float across_sum(float x) {
#pragma unroll
  for (int i = kAcross / 2; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
  return x;
}

}  // namespace mtrain::kernels::cuda
