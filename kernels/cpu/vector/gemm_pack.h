// Packing for kernels/cpu/gemm.h, into words of any kind. A word is 32 bits of a packed panel; one
// lane of a vector multiplies it at once. The including file describes a word by a class `Words`:
//   kDepth            number of consecutive k in a word
//   kWordMultiple     a packed k block of B is padded with zeros to a multiple of this many words
//   kMaxWords         words of the longest k block
// Its member class Packed<T> makes a word from an operand's elements T:
//   along(p), along(p, count)       kLanes words of contiguous k at p; only `count` elements
//                                   exist, and the others count as 0
//   across(p, ld, deep, lanes)      one word for each of kLanes neighbours at p, whose k are `ld`
//                                   apart; with `deep` all kDepth of them exist
#pragma once
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector/gemm_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

// Returns the words of a packed block of k elements of B.
template <class Words>
MT_INLINE int64_t packed_words(int64_t k) {
  constexpr int64_t kMultiple = Words::kWordMultiple;
  return div_up(div_up(k, Words::kDepth), kMultiple) * kMultiple;
}

// One cache line longer than the words: the rows of a panel are then in different sets of the
// first-level cache.
template <class Words>
constexpr int64_t kRowStride = Words::kMaxWords + 16;
template <class Words>
constexpr int64_t kPanel = kTileRows* kRowStride<Words>;

// Operands often come from memory, in pieces too short for the hardware's prefetcher. Rows of
// storage are prefetched this many rows ahead.
constexpr int64_t kRowsAhead = 16;

template <class Words, class T>
MT_INLINE void prefetch_rows(const T* line, int64_t ld) {
  for (int i = 0; i < Words::kDepth; ++i) __builtin_prefetch(line + (kRowsAhead + i) * ld);
}

// Packs A stored (K, M): some rows of storage at a time, and every panel takes a part of them.
// Reads then follow the storage.
template <class Words, class T>
void pack_k_major(const GemmKernels::PackA& p) {
  using Packed = typename Words::template Packed<T>;
  constexpr int64_t kRows = 8 * Words::kDepth, kLine = 64 / int64_t(sizeof(T));
  const T* a = static_cast<const T*>(p.a);
  const int64_t width = p.row[p.panels] - p.row[0];
  // Full vectors are read if they stay inside the matrix. Their elements beyond a panel's rows are
  // overwritten by the next k, or are in the padding after the last. In the last row of storage a
  // vector stays inside if it begins at `last_full_row` or before.
  const int64_t last_full_row = p.rows_to_end - kLanes;
  float* to = p.out;
  for (int64_t k0 = p.k0; k0 < p.k1; k0 += kRows, to += 8 * kTileRows) {
    const int64_t k1 = min_of(k0 + kRows, p.k1);
    for (int64_t k = k0; k < k1; ++k)
      for (int64_t j = 0; j < width; j += kLine)
        __builtin_prefetch(a + (k + kRowsAhead * Words::kDepth) * p.ld + j);
    for (int64_t i = 0; i < p.panels; ++i) {
      const int64_t row = p.row[i] - p.row[0];
      const Part rows{int(p.row[i + 1] - p.row[i])};
      const T* line = a + k0 * p.ld + row;
      float* out = to + i * kPanel<Words>;
      for (int64_t k = k0; k < k1; k += Words::kDepth, line += Words::kDepth * p.ld) {
        const bool deep = k + Words::kDepth <= k1;
        // A vector may extend into the next row of storage, which exists.
        const bool beyond = k + Words::kDepth < p.K && p.ld >= kLanes;
        if (beyond || row <= last_full_row)
          store(out, Packed::across(line, p.ld, deep, Full{}));
        else
          store(out, Packed::across(line, p.ld, deep, rows));
        out += kTileRows;
      }
    }
  }
}

template <class Words, class T>
MT_INLINE void copy_row(const T* from, int64_t ld, int64_t n, float* to) {
  using Packed = typename Words::template Packed<T>;
  constexpr int64_t kStep = Words::kDepth * kLanes;
  for (; n >= kStep; n -= kStep, from += kStep, to += kLanes) {
    __builtin_prefetch(from + 2 * ld);
    store(to, Packed::along(from));
  }
  if (n > 0) store(to, Packed::along(from, n));  // the end of this vector is in the padding
}

template <class Words, class T>
void pack_a_of(const GemmKernels::PackA& p) {
  static_assert(kTileRows <= kLanes);
  if (p.trans) return pack_k_major<Words, T>(p);
  const T* a = static_cast<const T*>(p.a);
  for (int64_t i = 0; i < p.panels; ++i)
    for (int64_t row = p.row[i]; row < p.row[i + 1]; ++row)
      copy_row<Words>(a + (row - p.row[0]) * p.ld + p.k0, p.ld, p.k1 - p.k0,
                      p.out + i * kPanel<Words> + (row - p.row[i]) * kRowStride<Words>);
}

// Packs B stored (K, N): some rows at a time over all panels. Reads then follow a few rows of
// storage, and writes fill full cache lines.
template <class Words, class T>
void pack_b_rows(const GemmKernels::PackB& p) {
  using Packed = typename Words::template Packed<T>;
  constexpr int64_t kRows = 8 * Words::kDepth;
  const T* b = static_cast<const T*>(p.b);
  const int64_t whole = p.columns / kTileColumns, left = p.columns - whole * kTileColumns;
  float* to = p.out;
  for (int64_t k0 = p.k0; k0 < p.k1; k0 += kRows, to += 8 * kTileColumns) {
    const int64_t k1 = min_of(k0 + kRows, p.k1);
    for (int64_t q = 0; q < whole; ++q) {
      const T* line = b + k0 * p.ld + q * kTileColumns;
      float* out = to + q * p.panel_stride;
      for (int64_t k = k0; k < k1; k += Words::kDepth, line += Words::kDepth * p.ld) {
        prefetch_rows<Words>(line, p.ld);
        const bool deep = k + Words::kDepth <= k1;
#pragma GCC unroll 2
        for (int v = 0; v < kTileVectors; ++v, out += kLanes)
          store(out, Packed::across(line + v * kLanes, p.ld, deep, Full{}));
      }
    }
    if (left == 0) continue;
    const T* line = b + k0 * p.ld + whole * kTileColumns;
    float* out = to + whole * p.panel_stride;
    for (int64_t k = k0; k < k1; k += Words::kDepth, line += Words::kDepth * p.ld) {
      const bool deep = k + Words::kDepth <= k1;
      for (int64_t j = 0; j < kTileColumns; j += kLanes, out += kLanes)
        store(out, j + kLanes <= left ? Packed::across(line + j, p.ld, deep, Full{})
                   : j < left         ? Packed::across(line + j, p.ld, deep, Part{int(left - j)})
                                      : Vf{});
    }
  }
}

// Transposes `rows` rows of storage, each kLanes words or `count` elements long, into rows of
// kTileColumns.
template <class Words, class T>
MT_INLINE void transpose_to(const T* from, int64_t ld, int64_t rows, int64_t count, float* out) {
  using Packed = typename Words::template Packed<T>;
  constexpr int64_t kStep = Words::kDepth * kLanes;
  Vf v[kLanes];
  if (count >= kStep) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      __builtin_prefetch(from + i * ld + 8 * kStep);
      v[i] = i < rows ? Packed::along(from + i * ld) : Vf{};
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) v[i] = i < rows ? Packed::along(from + i * ld, count) : Vf{};
  }
  transpose(v);
  const int64_t words = min_of(kLanes, div_up(count, Words::kDepth));
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (i < words) store(out + i * kTileColumns, v[i]);
}

// Packs B stored (N, K): blocks of kLanes x kLanes words are transposed in registers.
template <class Words, class T>
void pack_b_columns(const GemmKernels::PackB& p) {
  constexpr int64_t kStep = Words::kDepth * kLanes;
  const T* b = static_cast<const T*>(p.b) + p.k0;
  const int64_t n = p.k1 - p.k0;
  for (int64_t j = 0; j < div_up(p.columns, kTileColumns) * kTileColumns; j += kLanes) {
    const int64_t left = p.columns - j;
    const T* from = b + j * p.ld;
    float* out = p.out + j / kTileColumns * p.panel_stride + j % kTileColumns;
    int64_t k = 0;
    if (left >= kLanes)
      for (; k + kStep <= n; k += kStep, out += kLanes * kTileColumns)
        transpose_to<Words>(from + k, p.ld, kLanes, kStep, out);
    for (; k < n; k += kStep, out += kLanes * kTileColumns)
      transpose_to<Words>(from + k, p.ld, left, n - k, out);
  }
}

template <class Words, class T>
void pack_b_of(const GemmKernels::PackB& p) {
  p.trans ? pack_b_columns<Words, T>(p) : pack_b_rows<Words, T>(p);
  const int64_t full = div_up(p.k1 - p.k0, Words::kDepth);
  const int64_t words = packed_words<Words>(p.k1 - p.k0);
  if (full == words) return;
  for (int64_t q = 0; q < div_up(p.columns, kTileColumns); ++q)
    for (int64_t i = full * kTileColumns; i < words * kTileColumns; i += kLanes)
      store(p.out + q * p.panel_stride + i, Vf{});
}

}  // namespace
}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
