// The kernels of kernels/cpu/gemm.h on vector registers, for packed words of any kind
// (kernels/cpu/vector/gemm_pack.h). In addition, the class `Words` has
//   multiply_add<ROWS, VECTORS, ROW>(a, b, sum)   as in gemm_tile.h, for one word
#pragma once
#include "kernels/cpu/vector/gemm_pack.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

// Words that the inner loop multiplies per iteration.
constexpr int kUnroll = 4;
// The argument of __builtin_prefetch for the second-level cache: in the first-level cache, the next
// panel of B would displace the current one.
constexpr int kIntoSecondLevel = 2;

// Memory that will be needed soon: a tile prefetches a part of it in every iteration. A tile with
// FEW prefetches two addresses, `apart` bytes from each other. In iteration i the first of them is
// next + i % 4 * step + i / 4 * turn: steps between rows of storage alternate with turns along the
// rows.
struct Ahead {
  const char* next;
  int64_t step;  // bytes
  int64_t turn = 0, apart = 0;
};

// The destination of a tile's sums: GemmKernels::Block for one tile.
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

// Stores a tile at the right edge.
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
  with_float(t.out_type, [&]<class T>() { finish_edge_as<T>(sum, t); });
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

// Stores the columns of the tile as rows of memory.
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
  with_float(t.out_type, [&]<class T>() {
    if (rows == kLanes)
      finish_transposed<T>(sum, rows, vectors, t, Full{});
    else
      finish_transposed<T>(sum, rows, vectors, t, Part{rows});
  });
}

// Computes one tile. C is stored some thousand cycles later. Its cache lines are prefetched first,
// and one by one, since many at once would delay the loads of A and B. If rows of C do not begin at
// a cache line, a tile's row extends over one more line. The tile to the left has already loaded
// the first of these lines; therefore the last byte of each 64 is prefetched.
template <class Words, int ROWS, int VECTORS, bool K_MAJOR, bool FEW>
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
  for (int64_t n = 1; words >= kUnroll; words -= kUnroll, ++n) {
    __builtin_prefetch(next, 0, kIntoSecondLevel);
    if constexpr (FEW) {
      __builtin_prefetch(next + ahead.apart, 0, kIntoSecondLevel);
      next = ahead.next + n % 4 * ahead.step + n / 4 * ahead.turn;
    } else {
      next += ahead.step;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kUnroll; ++i) one_word();
  }
  for (; words > 0; --words) one_word();
  if (t.transposed || t.columns < VECTORS * kLanes) {
    Vf copy[ROWS][VECTORS];  // taking the address of `sum` would keep it out of registers
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) copy[i][v] = sum[i][v];
    t.transposed ? finish_transposed(copy[0], ROWS, VECTORS, t) : finish_edge(copy, t);
  } else if (t.out_type == DType::f32) {
    finish<float>(sum, t);
  } else if (t.out_type == DType::bf16) {
    finish<bf16>(sum, t);
  } else {
    finish<f16>(sum, t);
  }
}

using Tile = void (*)(const float*, const float*, int64_t, const Ahead&, const Target&);

// Picks a tile of exactly this height: the cost of an edge is then proportional to its rows.
template <class Words, int VECTORS, bool K_MAJOR, bool FEW = false, int ROWS = 1>
MT_INLINE Tile pick(int64_t rows) {
  if constexpr (ROWS < kTileRows)
    if (rows != ROWS) return pick<Words, VECTORS, K_MAJOR, FEW, ROWS + 1>(rows);
  return tile<Words, ROWS, VECTORS, K_MAJOR, FEW>;
}
template <class Words, bool FEW>
MT_INLINE Tile pick_tile(int64_t rows, bool narrow, bool k_major) {
  if constexpr (FEW)
    return narrow ? pick<Words, 1, false, true>(rows)
                  : pick<Words, kTileVectors, false, true>(rows);
  if (narrow) return k_major ? pick<Words, 1, true>(rows) : pick<Words, 1, false>(rows);
  return k_major ? pick<Words, kTileVectors, true>(rows) : pick<Words, kTileVectors, false>(rows);
}

MT_INLINE int64_t offset(const GemmKernels::Block& s, int64_t row, int64_t column, int64_t ld) {
  return s.transposed ? column * ld + row : row * ld + column;
}

// With at most this many panels of B, tiles prefetch the part of a row-major A that is packed next:
// B is already in the second-level cache, and packing would wait for memory.
constexpr int64_t kFewPanels = 4;

// Returns the part of the next A that the tile of panel p of A and panel q of B prefetches. With
// two panels of B, all tiles together prefetch all of it. Its panels are assumed to be as high as
// those of this block.
template <class Words>
MT_INLINE Ahead ahead_of_a(const GemmKernels::Block& s, int64_t p, int64_t q) {
  const int64_t ld = s.next_a_ld * s.next_a_size;
  const int64_t row = s.row[p] - s.row[0] + q * div_up(kTileRows, s.b_panels);
  // In 16 words of computation, 16 words of each row of this tile's share are prefetched.
  const int64_t turn = 4 * kUnroll * Words::kDepth * s.next_a_size;
  return {static_cast<const char*>(s.next_a) + row * ld, ld, turn, 4 * ld};
}

// A panel of B stays in the first-level cache while the panels of A are read from the second-level
// cache.
template <class Words, bool FEW>
MT_INLINE void block_of(const GemmKernels::Block& s) {
  const int64_t out_size = s.out_type == DType::f32 ? 4 : 2;
  for (int64_t q = 0; q < s.b_panels; ++q) {
    const int64_t j = q * kTileColumns;
    const int64_t columns = min_of(s.columns - j, kTileColumns);
    Tile run = nullptr;
    int64_t height = 0;
    // The tiles of this panel of B each prefetch a part of the next panel.
    Ahead ahead{reinterpret_cast<const char*>(s.b + (q + 1) * kTileColumns * s.words),
                div_up(kTileColumns * 4 * kUnroll, s.panels)};
    for (int64_t p = 0; p < s.panels; ++p) {
      const int64_t rows = s.row[p + 1] - s.row[p], below = s.row[p] - s.row[0];
      if (rows != height)
        run = pick_tile<Words, FEW>(height = rows, columns <= kLanes, s.a_k_major);
      run(static_cast<const float*>(s.a) + p * kPanel<Words>, s.b + q * kTileColumns * s.words,
          s.words, FEW ? ahead_of_a<Words>(s, p, q) : ahead,
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
template <class Words>
void block(const GemmKernels::Block& s) {
  if (s.next_a && !s.a_k_major && s.b_panels <= kFewPanels)
    block_of<Words, true>(s);
  else
    block_of<Words, false>(s);
}

// Measured with N 8192, K 768: AVX2 gains from a transposed C at 128 rows and loses at 256; AVX-512
// still gains at 384.
constexpr int64_t kFewRows = kLanes == 8 ? 192 : 512;

template <class Words>
constexpr GemmKernels gemm_kernels(void (*pack_a)(const GemmKernels::PackA&),
                                   void (*pack_b)(const GemmKernels::PackB&)) {
  return {.rows = kTileRows,
          .columns = kTileColumns,
          .depth = Words::kDepth,
          .word_multiple = Words::kWordMultiple,
          .row_stride = kRowStride<Words>,
          .max_words = Words::kMaxWords,
          .max_packed_b = 2 << 20,  // 8 MiB; a shared cache holds two such blocks
          .max_columns = 2048,
          .min_columns = 512,
          .unit_words = 60'000,  // 230 KiB in a core's second-level cache
          .min_unit_panels = 8,
          .max_unit_panels = 16,
          .few_rows = kFewRows,
          .pack_a = pack_a,
          .a_in_place = nullptr,
          .pack_b = pack_b,
          .block = block<Words>,
          .begin = nullptr,
          .end = nullptr};
}

}  // namespace
}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
