// The kernels of kernels/cpu/gemm.h, for packed words of any kind. A word is 32 bits of a packed
// panel: what one lane of a vector multiplies at once. The includer says in a class `Words` what is
// in it:
//   kDepth            how many consecutive k
//   kMaxWords         the longest k block, in words
//   multiply_add<ROWS, VECTORS, ROW>(a, b, sum)   as in gemm_tile.h, for one word
// and in a class Packed<T> how it is made of an operand's elements T:
//   along(p), along(p, count)       kLanes words of k that lie side by side at p; `count` elements
//                                   are there, the others count as 0
//   across(p, ld, deep, lanes)      one word of kLanes neighbours at p, its k `ld` apart; `deep`:
//                                   all kDepth of them are there
#pragma once
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector/gemm_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

// One cache line more than the words: the rows of a panel fall into different sets of the
// first-level cache.
template <class Words>
constexpr int64_t kRowStride = Words::kMaxWords + 16;
template <class Words>
constexpr int64_t kPanel = kTileRows* kRowStride<Words>;

// Operands often come from memory, in pieces too short for the hardware to run ahead: rows of
// storage so far apart are asked for early.
constexpr int64_t kRowsAhead = 16;

template <class Words, class T>
MT_INLINE void prefetch_rows(const T* line, int64_t ld) {
  for (int i = 0; i < Words::kDepth; ++i) __builtin_prefetch(line + (kRowsAhead + i) * ld);
}

// Some rows of A's storage at a time, of which every panel takes a piece: writes go side by side.
template <class Words, class T>
void pack_k_major(const GemmKernels::PackA& p) {
  using Packed = typename Words::template Packed<T>;
  constexpr int64_t kRows = 8 * Words::kDepth, kLine = 64 / int64_t(sizeof(T));
  const T* a = static_cast<const T*>(p.a);
  const int64_t width = p.row[p.panels] - p.row[0];
  // Whole vectors are read where they stay inside the matrix: what they carry beyond a panel's rows
  // is overwritten by the next k, or lies in the padding after the last.
  const int64_t last_whole =
      p.rows_to_end - kLanes;  // of the first rows of panels, in the last row of storage
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
        // The next row of storage may be read.
        const bool beyond = k + Words::kDepth < p.K && p.ld >= kLanes;
        if (beyond || row <= last_whole)
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
  if (n > 0) store(to, Packed::along(from, n));  // its end lies in the padding
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

// B as it is stored: some rows at a time over all panels, so that reads follow a few rows of
// storage and writes go to whole lines side by side.
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

// Transposes `rows` rows of storage, kLanes words or `count` elements long, into rows of
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

// B stored (N, K): blocks of kLanes x kLanes words are transposed in registers.
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
}

// Words that the inner loop multiplies per iteration.
constexpr int kUnroll = 4;
// The argument of __builtin_prefetch for the second-level cache: in the first, the next panel of B
// would displace the one in use.
constexpr int kIntoSecondLevel = 2;

// Memory that will be needed soon: a tile asks for a little of it with every iteration.
struct Ahead {
  const char* next;
  int64_t step;  // bytes
};

// Where a tile's sums go.
struct Target {
  const float* in;
  int64_t in_ld;
  void* out;
  int64_t out_ld;
  DType out_type;
  const float* bias;
  int64_t columns;
  bool transposed;
};

// A tile at the right edge.
template <class T, int ROWS, int VECTORS>
MT_INLINE void finish_edge_as(const Vf (&sum)[ROWS][VECTORS], const Target& t) {
  T* out = static_cast<T*>(t.out);
  const auto some = [&](int v, auto lanes) {
    const int64_t j = v * kLanes;
    for (int i = 0; i < ROWS; ++i) {
      Vf x = sum[i][v];
      if (t.in) x += load(t.in + i * t.in_ld + j, lanes);
      if (t.bias) x += load(t.bias + j, lanes);
      store(out + i * t.out_ld + j, x, lanes);
    }
  };
  for (int v = 0; v < VECTORS; ++v) {
    const int64_t left = t.columns - v * kLanes;
    if (left >= kLanes)
      some(v, Full{});
    else if (left > 0)
      some(v, Part{int(left)});
  }
}
template <int ROWS, int VECTORS>
void finish_edge(const Vf (&sum)[ROWS][VECTORS], const Target& t) {
  t.out_type == DType::f32 ? finish_edge_as<float>(sum, t) : finish_edge_as<bf16>(sum, t);
}

template <class T, bool ADD, bool BIAS, int ROWS, int VECTORS>
MT_INLINE void finish_as(const Vf (&sum)[ROWS][VECTORS], const Target& t) {
  T* out = static_cast<T*>(t.out);
  Vf bias[VECTORS]{};
  if constexpr (BIAS)
    for (int v = 0; v < VECTORS; ++v) bias[v] = load(t.bias + v * kLanes);
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) {
      Vf x = sum[i][v];
      if constexpr (ADD) x += load(t.in + i * t.in_ld + v * kLanes);
      if constexpr (BIAS) x += bias[v];
      store(out + i * t.out_ld + v * kLanes, x);
    }
}
template <class T, int ROWS, int VECTORS>
MT_INLINE void finish(const Vf (&sum)[ROWS][VECTORS], const Target& t) {
  if (t.in)
    t.bias ? finish_as<T, true, true>(sum, t) : finish_as<T, true, false>(sum, t);
  else
    t.bias ? finish_as<T, false, true>(sum, t) : finish_as<T, false, false>(sum, t);
}

// Columns of the tile become rows of memory.
template <class T, class Lanes>
MT_INLINE void finish_transposed(const Vf* sum, int rows, int vectors, const Target& t,
                                 Lanes lanes) {
  T* out = static_cast<T*>(t.out);
  const Vf bias = t.bias ? load(t.bias, lanes) : Vf{};
  for (int v = 0; v < vectors; ++v) {
    Vf line[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) line[i] = i < rows ? sum[i * vectors + v] : Vf{};
    transpose(line);
    const int64_t first = v * kLanes, end = min_of(kLanes, t.columns - first);
    for (int64_t j = 0; j < end; ++j) {
      Vf x = line[j];
      if (t.in) x += load(t.in + (first + j) * t.in_ld, lanes);
      if (t.bias) x += bias;
      store(out + (first + j) * t.out_ld, x, lanes);
    }
  }
}
void finish_transposed(const Vf* sum, int rows, int vectors, const Target& t) {
  const bool f32 = t.out_type == DType::f32;
  if (rows == kLanes)
    f32 ? finish_transposed<float>(sum, rows, vectors, t, Full{})
        : finish_transposed<bf16>(sum, rows, vectors, t, Full{});
  else
    f32 ? finish_transposed<float>(sum, rows, vectors, t, Part{rows})
        : finish_transposed<bf16>(sum, rows, vectors, t, Part{rows});
}

// C is touched after some thousand cycles: its lines are asked for first, and one by one, since
// many at once would hold up the loads of A and B. Where rows of C do not begin with a cache line,
// a tile's row lies in one line more; its first line came with the tile to the left, so the last
// byte of each 64 is asked for.
template <class Words, int ROWS, int VECTORS, bool K_MAJOR>
void tile(const float* a, const float* b, int64_t words, const Ahead& ahead, const Target& t) {
  constexpr int64_t kRow = K_MAJOR ? 1 : kRowStride<Words>, kStep = K_MAJOR ? kTileRows : 1;
  const int64_t size = t.out_type == DType::f32 ? 4 : 2;
  const int64_t lines = t.transposed ? t.columns : ROWS;
  const int64_t width = (t.transposed ? ROWS : VECTORS * kLanes) * size;
  const char* c = static_cast<const char*>(t.out) + min_of(width, 64) - 1;
  const int64_t c_ld = t.out_ld * size;
  Vf sum[ROWS][VECTORS]{};
  const auto one_word = [&] {
    Words::template multiply_add<ROWS, VECTORS, kRow>(a, b, sum);
    a += kStep, b += kTileColumns;
  };
  for (int64_t byte = 0; byte < width && words > 0; byte += 64, c += 64) {
    const int64_t n = min_of(words, lines);
    const char* line = c;
    for (int64_t i = 0; i < n; ++i, line += c_ld) {
      __builtin_prefetch(line);
      one_word();
    }
    words -= n;
  }
  const char* next = ahead.next;
  for (; words >= kUnroll; words -= kUnroll, next += ahead.step) {
    __builtin_prefetch(next, 0, kIntoSecondLevel);
#pragma GCC unroll 8
    for (int i = 0; i < kUnroll; ++i) one_word();
  }
  for (; words > 0; --words) one_word();
  if (t.transposed || t.columns < VECTORS * kLanes) {
    Vf copy[ROWS][VECTORS];  // what has an address is kept in memory, so that is not `sum`
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) copy[i][v] = sum[i][v];
    t.transposed ? finish_transposed(copy[0], ROWS, VECTORS, t) : finish_edge(copy, t);
  } else if (t.out_type == DType::f32) {
    finish<float>(sum, t);
  } else {
    finish<bf16>(sum, t);
  }
}

using Tile = void (*)(const float*, const float*, int64_t, const Ahead&, const Target&);

// Tiles of every height, so that an edge costs what it holds.
template <class Words, int VECTORS, bool K_MAJOR, int ROWS = 1>
MT_INLINE Tile pick(int64_t rows) {
  if constexpr (ROWS < kTileRows)
    if (rows != ROWS) return pick<Words, VECTORS, K_MAJOR, ROWS + 1>(rows);
  return tile<Words, ROWS, VECTORS, K_MAJOR>;
}
template <class Words>
MT_INLINE Tile pick_tile(int64_t rows, bool narrow, bool k_major) {
  if (narrow) return k_major ? pick<Words, 1, true>(rows) : pick<Words, 1, false>(rows);
  return k_major ? pick<Words, kTileVectors, true>(rows) : pick<Words, kTileVectors, false>(rows);
}

MT_INLINE int64_t offset(const GemmKernels::Block& s, int64_t row, int64_t column, int64_t ld) {
  return s.transposed ? column * ld + row : row * ld + column;
}

// A panel of B stays in the first-level cache while the panels of A pass by in the second.
template <class Words>
void block(const GemmKernels::Block& s) {
  const int64_t out_size = s.out_type == DType::f32 ? 4 : 2;
  for (int64_t q = 0; q < s.b_panels; ++q) {
    const int64_t j = q * kTileColumns;
    const int64_t columns = min_of(s.columns - j, kTileColumns);
    Tile run = nullptr;
    int64_t height = 0;
    // The next panel of B, spread over all tiles of this one.
    Ahead ahead{reinterpret_cast<const char*>(s.b + (q + 1) * kTileColumns * s.words),
                div_up(kTileColumns * 4 * kUnroll, s.panels)};
    for (int64_t p = 0; p < s.panels; ++p) {
      const int64_t rows = s.row[p + 1] - s.row[p], below = s.row[p] - s.row[0];
      if (rows != height) run = pick_tile<Words>(height = rows, columns <= kLanes, s.a_k_major);
      run(s.a + p * kPanel<Words>, s.b + q * kTileColumns * s.words, s.words, ahead,
          {.in = s.in ? s.in + offset(s, below, j, s.in_ld) : nullptr,
           .in_ld = s.in_ld,
           .out = static_cast<char*>(s.out) + offset(s, below, j, s.out_ld) * out_size,
           .out_ld = s.out_ld,
           .out_type = s.out_type,
           .bias = s.bias ? s.bias + (s.transposed ? below : j) : nullptr,
           .columns = columns,
           .transposed = s.transposed});
      ahead.next += ahead.step * (s.words / kUnroll);
    }
  }
}

// Measured with N 8192, K 768: AVX2 gains from a transposed C at 128 rows and loses at 256, AVX-512
// gains at 384 still.
constexpr int64_t kFewRows = kLanes == 8 ? 192 : 512;

template <class Words>
constexpr GemmKernels gemm_kernels(void (*pack_a)(const GemmKernels::PackA&),
                                   void (*pack_b)(const GemmKernels::PackB&)) {
  return {.rows = kTileRows,
          .columns = kTileColumns,
          .depth = Words::kDepth,
          .row_stride = kRowStride<Words>,
          .max_words = Words::kMaxWords,
          .few_rows = kFewRows,
          .pack_a = pack_a,
          .pack_b = pack_b,
          .block = block<Words>};
}

}  // namespace
}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
