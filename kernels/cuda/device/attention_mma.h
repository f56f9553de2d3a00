// Tiles of 16-bit elements in shared memory, and the operands that tensor cores load from them.
#pragma once
#include "kernels/cuda/device/amax.h"
#include "kernels/cuda/device/attention_mask.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/vector.h"

namespace mtrain::kernels::cuda {

// Rows of DIM elements. The 16-byte chunks of a row are permuted by the row's index. load_matrices
// reads the same chunk of eight rows at once; the permutation puts these chunks into different
// banks.
template <int DIM>
struct HalfTile {
  static constexpr int kChunks = DIM / 8, kRowBytes = DIM * 2;
  unsigned char* at;
  __device__ __forceinline__ unsigned char* chunk(int row, int c) const {
    return at + row * kRowBytes + (c ^ (row & 7)) * 16;
  }
};

// Starts to copy the rows [first, first + ROWS) of x; elements beyond `rows` (at least 1) and D
// become 0.
template <int ROWS, int THREADS, int DIM, Half T>
__device__ __forceinline__ void copy_rows(const HalfTile<DIM>& tile, const HeadRows<const T>& x,
                                          int first, int rows, int D) {
  constexpr int kChunks = HalfTile<DIM>::kChunks;
  static_assert(ROWS * kChunks % THREADS == 0);
#pragma unroll
  for (int n = 0; n < ROWS * kChunks / THREADS; ++n) {
    const int i = n * THREADS + int(threadIdx.x), r = i / kChunks, c = i % kChunks;
    const bool valid = first + r < rows && c * 8 < D;
    copy_async(tile.chunk(r, c), valid ? x.row(first + r) + c * 8 : x.data, valid);
  }
}

// Loads the operand a (16, 16): rows starting at row0, columns starting at 16 k.
template <int DIM>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const HalfTile<DIM>& tile, int row0,
                                       int k) {
  const int lane = int(threadIdx.x) % kWarp;
  load_matrices<false>(a, tile.chunk(row0 + lane % 16, 2 * k + lane / 16));
}
// Loads two operands b (16, 8) of the tile's transpose, whose columns are the tile's rows starting
// at row0: b[0], b[1] hold the first eight, b[2], b[3] the others.
template <int DIM>
__device__ __forceinline__ void load_b_transposed(uint32_t (&b)[4], const HalfTile<DIM>& tile,
                                                  int row0, int k) {
  const int lane = int(threadIdx.x) % kWarp, matrix = lane / 8;
  load_matrices<false>(b, tile.chunk(row0 + matrix / 2 * 8 + lane % 8, 2 * k + matrix % 2));
}
// Loads two operands b (16, 8): rows starting at row0, columns starting at 16 n.
template <int DIM>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const HalfTile<DIM>& tile, int row0,
                                       int n) {
  const int lane = int(threadIdx.x) % kWarp, matrix = lane / 8;
  load_matrices<true>(b, tile.chunk(row0 + matrix % 2 * 8 + lane % 8, 2 * n + matrix / 2));
}

// Results of shape (16, .) in registers. With g = lane / 4 and t = lane % 4, block n of 8 columns
// has elements (row g, columns 2 t, 2 t + 1) and then those of row g + 8. Two blocks, rounded, are
// an operand a of the next GEMM.
template <Half T>
__device__ __forceinline__ void as_operand(uint32_t (&a)[4], const float (&left)[4],
                                           const float (&right)[4]) {
  a[0] = pack_halves<T>(left[0], left[1]);
  a[1] = pack_halves<T>(left[2], left[3]);
  a[2] = pack_halves<T>(right[0], right[1]);
  a[3] = pack_halves<T>(right[2], right[3]);
}

// c += a b of T's operands, over the warp (mma.m16n8k16).
template <Half T>
__device__ __forceinline__ void mma_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
  if constexpr (std::is_same_v<T, f16>)
    mma_f16(c, a, b0, b1);
  else
    mma_bf16(c, a, b0, b1);
}

// Adds the operands `a` times the tile's rows, starting at row0, to c (16, 16 N).
template <Half T, int DIM>
__device__ __forceinline__ void multiply_rows(float (&c)[DIM / 8][4], const uint32_t (&a)[4],
                                              const HalfTile<DIM>& tile, int row0) {
#pragma unroll
  for (int n = 0; n < DIM / 16; ++n) {
    uint32_t b[4];
    load_b(b, tile, row0, n);
    mma_of<T>(c[2 * n], a, b[0], b[1]);
    mma_of<T>(c[2 * n + 1], a, b[2], b[3]);
  }
}

// Stores two neighbours of a row, in fp32 or as T.
template <Half T>
struct PairRows {
  char* data;
  int64_t stride;
  bool half;  // T
  __device__ __forceinline__ void put(int row, int d, float x, float y, bool add) const {
    const int64_t i = row * stride + d;
    if (half) {
      uint32_t* const to = reinterpret_cast<uint32_t*>(reinterpret_cast<uint16_t*>(data) + i);
      if (add) x += low_half<T>(*to), y += high_half<T>(*to);
      *to = pack_halves<T>(x, y);
    } else {
      float2* const to = reinterpret_cast<float2*>(reinterpret_cast<float*>(data) + i);
      if (add) x += to->x, y += to->y;
      *to = make_float2(x, y);
    }
  }
};
template <Half T>
struct PairHeads {
  char* data;
  int64_t token_stride;
  int B, D;
  bool half;
  __device__ __forceinline__ PairRows<T> of(int b, int head) const {
    const int64_t first = b * token_stride + int64_t(head) * D;
    return {data + first * (half ? 2 : 4), B * token_stride, half};
  }
  // Returns the index of a head's first element in a row.
  __device__ __forceinline__ int64_t element(int b, int head, int row) const {
    return (int64_t(row) * B + b) * token_stride + int64_t(head) * D;
  }
};
template <Half T>
PairHeads<T> pairs_of(const HeadSpan& v, const AttentionShape& s) {
  return {v.data.as<char>(), v.token_stride, int(s.B), int(s.D), v.data.dtype == dtype_of<T>};
}

// Calls f(row, d, x, y) for each two neighbours in the rows row0 + g and row0 + g + 8 of the warp's
// (16, DIM) sums, each times a factor.
template <int DIM, class F>
__device__ __forceinline__ void for_sums(const float (&c)[DIM / 8][4], int row0, int rows, int D,
                                         float factor, float factor_of_8, const F& f) {
  const int lane = int(threadIdx.x) % kWarp, row = row0 + lane / 4;
#pragma unroll
  for (int n = 0; n < DIM / 8; ++n) {
    const int d = n * 8 + lane % 4 * 2;
    if (d >= D) continue;
    if (row < rows) f(row, d, c[n][0] * factor, c[n][1] * factor);
    if (row + 8 < rows) f(row + 8, d, c[n][2] * factor_of_8, c[n][3] * factor_of_8);
  }
}
// Stores the sums.
template <int DIM, Half T>
__device__ __forceinline__ void put_sums(const PairRows<T>& to, const float (&c)[DIM / 8][4],
                                         int row0, int rows, int D, float factor, float factor_of_8,
                                         bool add) {
  for_sums<DIM>(c, row0, rows, D, factor, factor_of_8,
                [&](int row, int d, float x, float y) { to.put(row, d, x, y, add); });
}
// Raises amax to the largest absolute value of the sums, rounded to T, if amax is present. All
// lanes of the warp must call this.
template <int DIM, Half T>
__device__ __forceinline__ void raise_amax_of_sums(float* amax, const float (&c)[DIM / 8][4],
                                                   int row0, int rows, int D, float factor,
                                                   float factor_of_8) {
  if (!amax) return;
  float most = 0;
  for_sums<DIM>(c, row0, rows, D, factor, factor_of_8, [&](int, int, float x, float y) {
    most = larger_stored<T>(larger_stored<T>(most, x), y);
  });
  raise_amax(amax, most);
}

}  // namespace mtrain::kernels::cuda
