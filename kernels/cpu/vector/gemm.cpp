// Packing and the register tile of kernels/cpu/gemm.h.
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector/gemm_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kMaxK = 512;
// 33 cache lines: the rows of a panel fall into different sets of the first-level cache.
constexpr int64_t kRowStride = kMaxK + 16;

template <class T>
MT_INLINE void copy_row(const T* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

constexpr int64_t kPanel = kTileRows * kRowStride;

// A is read row by row of its storage, once, though every panel takes only a piece of a row.
template <class T>
void pack_k_major(const GemmKernels::PackA& p) {
  const T* a = static_cast<const T*>(p.a);
  // Whole vectors are read where they stay inside the matrix: what they carry beyond a panel's rows
  // is overwritten by the next k, or lies in the padding after the last.
  const int64_t last_whole =
      p.rows_to_end - kLanes;  // of the first rows of panels, in the last row of storage
  for (int64_t k = p.k0; k < p.k1; ++k) {
    const T* line = a + k * p.ld;
    float* out = p.out + (k - p.k0) * kTileRows;
    const bool beyond = k + 1 < p.K && p.ld >= kLanes;  // the next row of storage may be read
    for (int64_t i = 0; i < p.panels; ++i, out += kPanel) {
      const int64_t row = p.row[i] - p.row[0];
      if (beyond || row <= last_whole)
        store(out, load(line + row));
      else
        store(out, load(line + row, Part{int(p.row[i + 1] - p.row[i])}));
    }
  }
}

template <class T>
void pack_a_of(const GemmKernels::PackA& p) {
  static_assert(kTileRows <= kLanes);
  if (p.trans) return pack_k_major<T>(p);
  const T* a = static_cast<const T*>(p.a);
  for (int64_t i = 0; i < p.panels; ++i)
    for (int64_t row = p.row[i]; row < p.row[i + 1]; ++row)
      copy_row(a + (row - p.row[0]) * p.ld + p.k0, p.k1 - p.k0,
               p.out + i * kPanel + (row - p.row[i]) * kRowStride);
}

void pack_a(const GemmKernels::PackA& p) {
  p.dtype == DType::f32 ? pack_a_of<float>(p) : pack_a_of<bf16>(p);
}

// Stores column j of a kLanes x kLanes block to out + j * stride.
template <class T>
MT_INLINE void transpose_to(const T* from, int64_t ld, int64_t rows, float* out, int64_t stride) {
  Vf v[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) v[i] = i < rows ? load(from + i * ld) : Vf{};
  transpose(v);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(out + i * stride, v[i]);
}

// B as it is stored, row by row over all panels.
template <class T>
void pack_b_rows(const GemmKernels::PackB& p) {
  const T* b = static_cast<const T*>(p.b) + p.k0 * p.ld;
  const int64_t n = p.k1 - p.k0, whole = p.columns / kTileColumns;
  for (int64_t k = 0; k < n; ++k) {
    const T* line = b + k * p.ld;
    float* out = p.out + k * kTileColumns;
    for (int64_t q = 0; q < whole; ++q, line += kTileColumns, out += n * kTileColumns)
#pragma GCC unroll 2
      for (int v = 0; v < kTileVectors; ++v) store(out + v * kLanes, load(line + v * kLanes));
    const int64_t left = p.columns - whole * kTileColumns;
    if (left == 0) continue;
    for (int64_t j = 0; j < kTileColumns; j += kLanes)
      store(out + j, j + kLanes <= left ? load(line + j)
                     : j < left         ? load(line + j, Part{int(left - j)})
                                        : Vf{});
  }
}

// B stored (N, K): blocks of kLanes x kLanes are transposed in registers.
template <class T>
void pack_b_columns(const GemmKernels::PackB& p) {
  const T* b = static_cast<const T*>(p.b) + p.k0;
  const int64_t n = p.k1 - p.k0;
  for (int64_t j = 0; j < div_up(p.columns, kTileColumns) * kTileColumns; j += kLanes) {
    const int64_t left = p.columns - j;
    const T* from = b + j * p.ld;
    float* out = p.out + j / kTileColumns * kTileColumns * n + j % kTileColumns;
    int64_t k = 0;
    if (left >= kLanes) {
      for (; k + kLanes <= n; k += kLanes)
        transpose_to(from + k, p.ld, kLanes, out + k * kTileColumns, kTileColumns);
    } else {
      for (; k + kLanes <= n; k += kLanes)
        transpose_to(from + k, p.ld, left, out + k * kTileColumns, kTileColumns);
    }
    for (; k < n; ++k)
      for (int64_t i = 0; i < kLanes; ++i)
        out[k * kTileColumns + i] = i < left ? to_float(from[i * p.ld + k]) : 0.0f;
  }
}

template <class T>
void pack_b_of(const GemmKernels::PackB& p) {
  p.trans ? pack_b_columns<T>(p) : pack_b_rows<T>(p);
}

void pack_b(const GemmKernels::PackB& p) {
  p.dtype == DType::f32 ? pack_b_of<float>(p) : pack_b_of<bf16>(p);
}

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

// A tile at the right edge, element by element.
template <int ROWS, int VECTORS>
void finish_edge(const Vf (&sum)[ROWS][VECTORS], const Target& t) {
  for (int i = 0; i < ROWS; ++i) {
    float line[VECTORS * kLanes];
    __builtin_memcpy(line, sum[i], sizeof line);
    for (int64_t j = 0; j < t.columns; ++j) {
      float x = line[j];
      if (t.in) x += t.in[i * t.in_ld + j];
      if (t.bias) x += t.bias[j];
      if (t.out_type == DType::f32)
        static_cast<float*>(t.out)[i * t.out_ld + j] = x;
      else
        static_cast<bf16*>(t.out)[i * t.out_ld + j] = from_float<bf16>(x);
    }
  }
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

// C is touched after some thousand cycles: ask for it now.
MT_INLINE void prefetch_target(const Target& t, int rows, int vectors) {
  const char* out = static_cast<const char*>(t.out);
  const int64_t line = t.out_ld * (t.out_type == DType::f32 ? 4 : 2);
  if (t.transposed)
    for (int64_t j = 0; j < t.columns; ++j) __builtin_prefetch(out + j * line, 1);
  else
    for (int i = 0; i < rows; ++i)
      for (int v = 0; v < vectors; ++v) __builtin_prefetch(out + i * line + v * 64, 1);
}

template <int ROWS, int VECTORS, bool K_MAJOR>
void tile(const float* a, const float* b, int64_t k, const Target& t) {
  constexpr int64_t kRow = K_MAJOR ? 1 : kRowStride, kStep = K_MAJOR ? kTileRows : 1;
  prefetch_target(t, ROWS, VECTORS);
  Vf sum[ROWS][VECTORS]{};
  multiply_add<ROWS, VECTORS, kRow, kStep>(a, b, k, sum);
  if (t.transposed) return finish_transposed(sum[0], ROWS, VECTORS, t);
  if (t.columns < VECTORS * kLanes) return finish_edge<ROWS, VECTORS>(sum, t);
  if (t.out_type == DType::f32)
    finish<float, ROWS, VECTORS>(sum, t);
  else
    finish<bf16, ROWS, VECTORS>(sum, t);
}

using Tile = void (*)(const float*, const float*, int64_t, const Target&);

// Tiles of every height, so that an edge costs what it holds.
template <int VECTORS, bool K_MAJOR, int ROWS = 1>
MT_INLINE Tile pick(int64_t rows) {
  if constexpr (ROWS < kTileRows)
    if (rows != ROWS) return pick<VECTORS, K_MAJOR, ROWS + 1>(rows);
  return tile<ROWS, VECTORS, K_MAJOR>;
}
MT_INLINE Tile pick_tile(int64_t rows, bool narrow, bool k_major) {
  if (narrow) return k_major ? pick<1, true>(rows) : pick<1, false>(rows);
  return k_major ? pick<kTileVectors, true>(rows) : pick<kTileVectors, false>(rows);
}

MT_INLINE int64_t offset(const GemmKernels::Block& s, int64_t row, int64_t column, int64_t ld) {
  return s.transposed ? column * ld + row : row * ld + column;
}

// A panel of B stays in the first-level cache while the panels of A pass by in the second.
void block(const GemmKernels::Block& s) {
  const int64_t out_size = s.out_type == DType::f32 ? 4 : 2;
  for (int64_t q = 0; q < s.b_panels; ++q) {
    const int64_t j = q * kTileColumns;
    const int64_t columns = min_of(s.columns - j, kTileColumns);
    Tile run = nullptr;
    int64_t height = 0;
    for (int64_t p = 0; p < s.panels; ++p) {
      const int64_t rows = s.row[p + 1] - s.row[p], below = s.row[p] - s.row[0];
      if (rows != height) run = pick_tile(height = rows, columns <= kLanes, s.a_k_major);
      run(s.a + p * kPanel, s.b + q * kTileColumns * s.k, s.k,
          {.in = s.in ? s.in + offset(s, below, j, s.in_ld) : nullptr,
           .in_ld = s.in_ld,
           .out = static_cast<char*>(s.out) + offset(s, below, j, s.out_ld) * out_size,
           .out_ld = s.out_ld,
           .out_type = s.out_type,
           .bias = s.bias ? s.bias + (s.transposed ? below : j) : nullptr,
           .columns = columns,
           .transposed = s.transposed});
    }
  }
}

}  // namespace

extern const GemmKernels kGemm;
const GemmKernels kGemm{.rows = kTileRows,
                        .columns = kTileColumns,
                        .row_stride = kRowStride,
                        .max_k = kMaxK,
                        .pack_a = pack_a,
                        .pack_b = pack_b,
                        .block = block};

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
