// kernels/cpu/gemm.h on AMX tiles: one instruction multiplies 16 rows of A, 32 k long, by 32 k of
// 16 columns of B. Compiled once, for CPUs that have AMX.
//
// Tiles are so fast that all other work costs time. A panel of A, 32 rows and one k block, stays in
// the first-level cache while the packed block of B streams from the second-level cache. A is read
// from the caller's memory if a_in_place() allows it. The sums of one square of C are written to a
// small buffer, and vector instructions copy them to C between the tile instructions of the next
// square.
//
// An element's sum over one k block is computed in a tile, in fp32: each instruction sums its 32 k
// and adds them to the tile, in increasing order. The sums of the blocks are then added. A k block
// is padded with zeros to full steps of 32, in A and in B: a NaN or an infinity beyond it has no
// effect. Rows and columns beyond C's edge are computed from arbitrary memory contents, and are not
// stored.
#include "kernels/cpu/vector/bf16_pairs.h"
#include "kernels/cpu/vector/gemm_pack.h"
#include "kernels/cpu/vector_amx/tiles.h"
#include "kernels/cpu/vector_amx/transpose.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kStepFloats = kSide * kTile;  // floats of one step of a packed panel of A or B
static_assert(kSide == kTileColumns);

struct TileWords : Bf16Pairs {
  static constexpr int kWordMultiple = kTile;
  // A panel of A takes 32 KiB of the first-level cache's 48.
  static constexpr int64_t kMaxWords = 256;
};

// --- packing A ---

// A packed panel of A is [step of k][row][32 k]: the rows of a tile are contiguous.
void copy_panel(const bf16* a, int64_t ld, int64_t rows, int64_t k, float* out) {
  for (int64_t i = 0; i < rows; ++i, a += ld, out += kTile) {
    float* to = out;
    int64_t j = 0;
    for (; j + kStep <= k; j += kStep, to += kStepFloats)
      store(to, Bf16Pairs::Packed<bf16>::along(a + j));
    if (j < k) store(to, Bf16Pairs::Packed<bf16>::along(a + j, k - j));
  }
}

// Packs A stored (K, M).
void transpose_panel(const bf16* a, int64_t ld, int64_t rows, int64_t k, float* out) {
  for (; k > 0; k -= kStep, a += kStep * ld, out += kStepFloats) {
    if (rows == kSide && k >= kStep) {
      transpose_step(a, ld, out);
      continue;
    }
    alignas(64) bf16 edge[kStep * kSide];
    const __mmask32 lanes = rows == kSide ? ~__mmask32(0) : (__mmask32(1) << rows) - 1;
    for (int64_t i = 0; i < kStep; ++i)
      _mm512_store_si512(edge + i * kSide,
                         _mm512_maskz_loadu_epi16(i < k ? lanes : 0, i < k ? a + i * ld : a));
    transpose_step(edge, kSide, out);
  }
}

void pack_a(const GemmKernels::PackA& p) {
  const bf16* a = static_cast<const bf16*>(p.a);
  for (int64_t i = 0; i < p.panels; ++i) {
    const int64_t below = p.row[i] - p.row[0], rows = p.row[i + 1] - p.row[i];
    float* out = p.out + i * kSide * TileWords::kMaxWords;
    if (p.trans)
      transpose_panel(a + p.k0 * p.ld + below, p.ld, rows, p.k1 - p.k0, out);
    else
      copy_panel(a + below * p.ld + p.k0, p.ld, rows, p.k1 - p.k0, out);
  }
}

// Returns whether tiles can be loaded from A itself: if it has full steps of k, in full cache
// lines, and no row that is loaded is beyond the matrix. This is too slow if the rows map to few
// sets of the first-level cache. Rows 64 lines apart map to the same set. The k / kStep lines of
// each row therefore fill all sets evenly only if the largest power of 2 that divides the rows'
// distance in lines is no larger than k / kStep.
bool a_in_place(const GemmKernels::PackA& p) {
  const int64_t line = 64, row_bytes = p.ld * 2, k = p.k1 - p.k0;
  if (p.trans || k % kStep != 0 || row_bytes % line != 0 || uintptr_t(p.a) % line != 0)
    return false;
  const int64_t last = p.row[p.panels - 1], rows = p.row[p.panels] - last;
  if (last - p.row[0] + (rows > kTile ? kSide : kTile) > p.rows_to_end) return false;
  const int64_t lines = row_bytes / line;
  return (lines & -lines) <= k / kStep;
}

// --- sums to C ---

struct Square {
  alignas(64) float sum[kSide * kSide];
};

// The destination in C of a square's sums; rows == 0 means none.
struct Destination {
  const float* in;
  int64_t in_ld;
  void* out;
  int64_t out_ld;
  DType out_type;
  const float* bias;
  int64_t rows, columns;  // size of the square, limited to the part inside C
  bool transposed;
};

// How a square is stored into C in kPieces pieces: two rows each or, if it is transposed, four
// columns of a tile. Each common case is a separate type: between two tile instructions there is
// time for a few instructions, but not for branches.
constexpr int64_t kPieces = 16;

// Returns 16 sums plus `in` and the bias. They are neighbours in memory; the first is element
// (line, i).
template <bool ADD, bool BIAS, class Lanes>
MT_INLINE Vf finished(Vf x, const Destination& d, int64_t line, int64_t i, Lanes lanes) {
  if constexpr (ADD) x += load(d.in + line * d.in_ld + i, lanes);
  if constexpr (BIAS) x += load(d.bias + i, lanes);
  return x;
}
template <class T>
MT_INLINE T* out_of(const Destination& d, int64_t line, int64_t i) {
  return static_cast<T*>(d.out) + line * d.out_ld + i;
}

template <class T, bool ADD, bool BIAS>
struct FullRows {
  MT_INLINE void piece(const Square& s, const Destination& d, int64_t piece) {
#pragma GCC unroll 2
    for (int64_t i = 2 * piece; i < 2 * piece + 2; ++i) {
      Vf x[2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        x[v] = finished<ADD, BIAS>(load(s.sum + i * kSide + v * kTile), d, i, v * kTile, Full{});
      T* out = out_of<T>(d, i, 0);
      if constexpr (sizeof(T) == 2) {  // a full cache line at once
        _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]));
      } else {
        store(out, x[0]);
        store(out + kTile, x[1]);
      }
    }
  }
};

// Stores four columns of a tile as rows of memory.
template <class T, bool ADD, bool BIAS, class Lanes>
MT_INLINE void put_columns(const Square& s, const Destination& d, int64_t row, int64_t column,
                           int64_t columns, Lanes rows) {
  const char* from = reinterpret_cast<const char*>(s.sum + row * kSide + column);
  __m512i x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)  // rows i, 4 + i, 8 + i and 12 + i
    x[i] = quarters(from + i * kSide * 4, 4 * kSide * 4);
  const __m512i a = _mm512_maskz_unpacklo_epi32(0xffff, x[0], x[1]);
  const __m512i b = _mm512_maskz_unpackhi_epi32(0xffff, x[0], x[1]);
  const __m512i c = _mm512_maskz_unpacklo_epi32(0xffff, x[2], x[3]);
  const __m512i e = _mm512_maskz_unpackhi_epi32(0xffff, x[2], x[3]);
  const Vf v[4] = {
      (Vf)_mm512_maskz_unpacklo_epi64(0xff, a, c), (Vf)_mm512_maskz_unpackhi_epi64(0xff, a, c),
      (Vf)_mm512_maskz_unpacklo_epi64(0xff, b, e), (Vf)_mm512_maskz_unpackhi_epi64(0xff, b, e)};
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j)
    if (j < columns)
      store(out_of<T>(d, column + j, row), finished<ADD, BIAS>(v[j], d, column + j, row, rows),
            rows);
}

template <class T, bool ADD, bool BIAS>
struct FullColumns {
  MT_INLINE void piece(const Square& s, const Destination& d, int64_t piece) {
    put_columns<T, ADD, BIAS>(s, d, piece % 2 * kTile, piece / 2 * 4, 4, Full{});
  }
};

// Stores a square at an edge of C, all at once.
template <class T, bool ADD, bool BIAS>
void put_edge(const Square& s, const Destination& d) {
  const auto lanes = [](int64_t left, const auto& f) {
    left >= kTile ? f(Full{}) : f(Part{int(left)});
  };
  if (d.transposed) {
    for (int64_t row = 0; row < d.rows; row += kTile)
      for (int64_t column = 0; column < d.columns; column += 4)
        lanes(d.rows - row, [&](auto rows) {
          put_columns<T, ADD, BIAS>(s, d, row, column, d.columns - column, rows);
        });
    return;
  }
  for (int64_t i = 0; i < d.rows; ++i)
    for (int64_t j = 0; j < d.columns; j += kTile)
      lanes(d.columns - j, [&](auto columns) {
        store(out_of<T>(d, i, j),
              finished<ADD, BIAS>(load(s.sum + i * kSide + j), d, i, j, columns), columns);
      });
}
template <class T, bool ADD, bool BIAS>
struct Edge {
  MT_INLINE void piece(const Square& s, const Destination& d, int64_t piece) {
    if (piece == 0) put_edge<T, ADD, BIAS>(s, d);
  }
};

struct Nothing {
  MT_INLINE void piece(const Square&, const Destination&, int64_t) {}
};

// --- tiles ---

// Memory that is prefetched, `each` lines with every step of k.
struct AheadOfC {
  const char* next;
  int64_t ld, lines, each;
  bool two;  // lines side by side
};
struct AheadOfA {
  const char* next;
  int64_t ld, each;
  int64_t step;  // bytes from the lines of one step to those of the next
};

struct Panels {
  const char* a;
  int64_t a_ld, a_step;  // bytes between rows, and from one step of k to the next
  const float* b;
  int64_t steps;
};

// Computes one square of C, 1 or 2 tiles high and wide, while the previous square is stored into C.
template <bool TALL, bool WIDE, class Put>
void multiply(const Panels& panels, Square& result, const Square& before,
              const Destination& destination, const AheadOfA& next_a, const AheadOfC& next_c) {
  const Destination d = destination;  // copies that stores to C cannot change
  const Panels p = panels;
  AheadOfA of_a = next_a;
  AheadOfC of_c = next_c;
  const char* a = p.a;
  const float* b = p.b;
  const int64_t each = div_up(kPieces, p.steps);
  int64_t piece = 0;
  order_memory();
  _tile_zero(0);
  if constexpr (WIDE) _tile_zero(1);
  if constexpr (TALL) _tile_zero(2);
  if constexpr (TALL && WIDE) _tile_zero(3);
  for (int64_t s = 0; s < p.steps; ++s, a += p.a_step, b += kStepFloats) {
    _tile_loadd(4, a, p.a_ld);
    _tile_stream_loadd(6, b, kSide * 4);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (WIDE) {
      _tile_stream_loadd(7, b + kTile, kSide * 4);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (TALL) {
      _tile_loadd(5, a + kTile * p.a_ld, p.a_ld);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (TALL && WIDE) _tile_dpbf16ps(3, 5, 7);
    const char* line = of_a.next;
    for (int64_t i = 0; i < of_a.each; ++i, line += of_a.ld) __builtin_prefetch(line, 0, 2);
    of_a.next += of_a.step;
    for (int64_t i = min_of(of_c.each, of_c.lines); i > 0; --i, --of_c.lines) {
      __builtin_prefetch(of_c.next, 1);
      if (of_c.two) __builtin_prefetch(of_c.next + 64, 1);
      of_c.next += of_c.ld;
    }
    for (int64_t i = 0; i < each && piece < kPieces; ++i) Put::piece(before, d, piece++);
  }
  order_memory();
  _tile_stored(0, result.sum, kSide * 4);
  if constexpr (WIDE) _tile_stored(1, result.sum + kTile, kSide * 4);
  if constexpr (TALL) _tile_stored(2, result.sum + kTile * kSide, kSide * 4);
  if constexpr (TALL && WIDE) _tile_stored(3, result.sum + kTile * kSide + kTile, kSide * 4);
  order_memory();
}

template <class Put>
void put_last(const Square& s, const Destination& d) {
  for (int64_t piece = 0; piece < kPieces; ++piece) Put::piece(s, d, piece);
}

// The functions that are compiled for one way to store sums into C.
struct Code {
  void (*multiply[2][2])(const Panels&, Square&, const Square&, const Destination&, const AheadOfA&,
                         const AheadOfC&);  // [tall][wide]
  void (*last)(const Square&, const Destination&);
};
template <class Put>
constexpr Code kCode = {{{multiply<false, false, Put>, multiply<false, true, Put>},
                         {multiply<true, false, Put>, multiply<true, true, Put>}},
                        put_last<Put>};

template <template <class, bool, bool> class Put, class T>
const Code& pick(bool add, bool bias) {
  if (add) return bias ? kCode<Put<T, true, true>> : kCode<Put<T, true, false>>;
  return bias ? kCode<Put<T, false, true>> : kCode<Put<T, false, false>>;
}
template <template <class, bool, bool> class Put>
const Code& pick(const Destination& d) {
  return d.out_type == DType::f32 ? pick<Put, float>(d.in, d.bias) : pick<Put, bf16>(d.in, d.bias);
}
const Code& code_of(const Destination& d) {
  if (d.rows == 0) return kCode<Nothing>;
  if (d.rows < kSide || d.columns < kSide) return pick<Edge>(d);
  return d.transposed ? pick<FullColumns>(d) : pick<FullRows>(d);
}

void block(const GemmKernels::Block& s) {
  Square square[2];
  int now = 0;
  Destination before{};
  const int64_t steps = s.words / kTile, out_size = s.out_type == DType::f32 ? 4 : 2;
  for (int64_t p = 0; p < s.panels; ++p) {
    const int64_t rows = s.row[p + 1] - s.row[p], below = s.row[p] - s.row[0];
    Panels panels;
    panels.steps = steps;
    if (s.a_ld != 0) {
      panels.a = static_cast<const char*>(s.a) + below * s.a_ld * 2;
      panels.a_ld = s.a_ld * 2;
      panels.a_step = kStep * 2;
    } else {
      panels.a = static_cast<const char*>(s.a) + p * kSide * TileWords::kMaxWords * 4;
      panels.a_ld = kTile * 4;
      panels.a_step = kStepFloats * 4;
    }
    // The 32 lines of a step of the next panel are prefetched during the squares of this one.
    AheadOfA of_a{};
    int64_t lines = s.next_a && p + 1 == s.panels ? kSide : 0;
    of_a.next = static_cast<const char*>(s.next_a ? s.next_a : s.a);
    of_a.ld = s.next_a_ld * 2;
    of_a.each = div_up(kSide, s.b_panels);
    of_a.step = s.a_k_major ? kStep * of_a.ld : kStep * 2;
    for (int64_t q = 0; q < s.b_panels; ++q) {
      const int64_t j = q * kSide, columns = min_of(s.columns - j, kSide);
      const auto at = [&](int64_t ld) { return s.transposed ? j * ld + below : below * ld + j; };
      const Destination d{.in = s.in ? s.in + at(s.in_ld) : nullptr,
                          .in_ld = s.in_ld,
                          .out = static_cast<char*>(s.out) + at(s.out_ld) * out_size,
                          .out_ld = s.out_ld,
                          .out_type = s.out_type,
                          .bias = s.bias ? s.bias + (s.transposed ? below : j) : nullptr,
                          .rows = rows,
                          .columns = columns,
                          .transposed = s.transposed};
      AheadOfC of_c;
      of_c.next = static_cast<const char*>(d.out);
      of_c.ld = d.out_ld * out_size;
      of_c.lines = s.transposed ? columns : rows;
      of_c.each = div_up(of_c.lines, steps);
      of_c.two = (s.transposed ? rows : columns) * out_size > 64;
      of_a.each = min_of(of_a.each, lines);
      panels.b = s.b + j * s.words;
      code_of(before).multiply[rows > kTile][columns > kTile](panels, square[now], square[1 - now],
                                                              before, of_a, of_c);
      of_a.next += of_a.each * of_a.ld;
      lines -= of_a.each;
      before = d;
      now = 1 - now;
    }
  }
  code_of(before).last(square[1 - now], before);
}

// --- the table ---

void begin() { configure_tiles(); }
void end() { _tile_release(); }

}  // namespace

extern const GemmKernels kGemm;
const GemmKernels kGemm = {
    .rows = kSide,
    .columns = kSide,
    .depth = TileWords::kDepth,
    .word_multiple = TileWords::kWordMultiple,
    .row_stride = TileWords::kMaxWords,
    .max_words = TileWords::kMaxWords,
    .max_packed_b = 256 << 10,  // 1 MiB of a second-level cache's 2
    .max_columns = 2048,
    .min_columns = 1024,
    .unit_words = 0,  // one panel, which stays in the first-level cache
    .min_unit_panels = 1,
    .max_unit_panels = 1,
    .few_rows = 512,
    .pack_a = pack_a,
    .a_in_place = a_in_place,
    .pack_b = pack_b_of<TileWords, bf16>,
    .block = block,
    .begin = begin,
    .end = end,
};

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
