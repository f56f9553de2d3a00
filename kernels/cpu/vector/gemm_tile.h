// The register tile that matmul and attention share: ROWS x VECTORS sums held in registers over a
// loop on k.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// The sums take all registers except those for a row of B and one broadcast of A: 28 of 32, 12 or 8
// of 16. There are never more rows than lanes: a column of a tile fits into a vector.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 14;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 6;
#else
inline constexpr int kTileRows = 4;
#endif
inline constexpr int kTileVectors = 2;
inline constexpr int kTileColumns = kTileVectors * kLanes;

// sum[i][v] += sum over k of a[i * ROW + k * STEP] * b[k * kTileColumns + v * kLanes ...]
template <int ROWS, int VECTORS, int64_t ROW, int64_t STEP>
MT_INLINE void multiply_add(const float* a, const float* b, int64_t k, Vf (&sum)[ROWS][VECTORS]) {
  for (; k > 0; --k, a += STEP, b += kTileColumns) {
    Vf line[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) line[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const Vf x = splat(a[i * ROW]);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) sum[i][v] += x * line[v];
    }
  }
}

// Swaps the off-diagonal S x S blocks of a kLanes x kLanes matrix; all S = 1, 2, 4, ... together
// transpose it.
template <int S>
MT_INLINE void swap_blocks(Vf (&v)[kLanes]) {
  Vi low, high;
  for (int l = 0; l < kLanes; ++l) {
    low[l] = (l & S) ? kLanes + l - S : l;
    high[l] = (l & S) ? kLanes + l : l + S;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & S) == 0) {
      const Vf a = v[i], b = v[i + S];
      v[i] = __builtin_shuffle(a, b, low);
      v[i + S] = __builtin_shuffle(a, b, high);
    }
}
MT_INLINE void transpose(Vf (&v)[kLanes]) {
  swap_blocks<1>(v);
  swap_blocks<2>(v);
  if constexpr (kLanes > 4) swap_blocks<4>(v);
  if constexpr (kLanes > 8) swap_blocks<8>(v);
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
