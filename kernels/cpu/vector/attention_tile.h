// Code that attention's forward and backward share: packed operands, tiles on them, and which keys
// a row attends to.
//
// A (rows, D) matrix has two packed layouts, both fp32 and split into slabs of kTileColumns (W):
//   row slabs     [D / W][rows][W]: B of a GEMM that sums over rows; or A, with rows W apart and
//                 the slabs one after another
//   column slabs  [rows / W][D][W]: the transpose, B of a GEMM that sums over D
#pragma once
#include "kernels/attention.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/cpu/vector/gemm_tile.h"
#include "kernels/cpu/vector/softcap.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

constexpr int64_t W = kTileColumns;

MT_INLINE int64_t slabs(int64_t n) { return div_up(n, W); }

// One head of one sequence: row s is at data + s * stride. D is the operand's head dim.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  T* row(int64_t s) const { return data + s * stride; }
};
template <class T>
MT_INLINE Rows<const T> rows_of(const HeadView& v, const AttentionShape& s, int64_t b, int64_t head,
                                int64_t D) {
  return {data_of<T>(v.data) + b * v.token_stride + head * D, s.B * v.token_stride};
}
template <class T>
MT_INLINE Rows<T> rows_of(const HeadSpan& v, const AttentionShape& s, int64_t b, int64_t head,
                          int64_t D) {
  return {data_of<T>(v.data) + b * v.token_stride + head * D, s.B * v.token_stride};
}

// Rows of x may be whole pages apart, where a CPU's own prefetcher stops. They are prefetched this
// many rows before they are packed.
constexpr int64_t kPackAhead = 8;

// Prefetches D elements into the first-level cache. The row may be beyond the last one.
template <class T>
MT_INLINE void prefetch_row(const T* row, int64_t D) {
  for (int64_t d = 0; d < D; d += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + d);
}

// Writes row slabs of x, times `factor`. A slab has `total` rows; `rows` of them are written,
// beginning at `out`. The last slab is padded with 0.
template <class T>
MT_INLINE void pack_rows(Rows<const T> x, int64_t first, int64_t rows, int64_t D, float factor,
                         float* out, int64_t total) {
  const int64_t full = D / kLanes * kLanes;
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = x.row(first + i);
    prefetch_row(x.row(first + i + kPackAhead), D);
    for (int64_t d = 0; d < slabs(D) * W; d += kLanes) {
      float* to = out + (d / W * total + i) * W + d % W;
      if (d < full)
        store(to, load(from + d) * factor);
      else if (d < D)
        store(to, load(from + d, Part{int(D - d)}) * factor);
      else
        store(to, Vf{});
    }
  }
}

// Writes column slabs of the rows [first, first + rows) of x. The last slab is padded with 0.
template <class T>
MT_INLINE void pack_columns(Rows<const T> x, int64_t first, int64_t rows, int64_t D, float* out) {
  for (int64_t r = 0; r < slabs(rows) * W; r += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) prefetch_row(x.row(first + r + kLanes + i), D);
    for (int64_t d = 0; d < D; d += kLanes) {
      Vf v[kLanes];
      for (int i = 0; i < kLanes; ++i)
        v[i] = r + i >= rows     ? Vf{}
               : d + kLanes <= D ? load(x.row(first + r + i) + d)
                                 : load(x.row(first + r + i) + d, Part{int(D - d)});
      transpose(v);
      float* to = out + (r / W * D + d) * W + r % W;
      const int64_t lines = min_of(kLanes, D - d);
      for (int64_t i = 0; i < lines; ++i) store(to + i * W, v[i]);
    }
  }
}

// Writes factor * row slabs into the rows [first, first + rows) of x, or adds it with `add`. The
// slabs have `total` rows each.
template <class T>
MT_INLINE void unpack_rows(const float* slab, int64_t total, int64_t rows, int64_t D, float factor,
                           Rows<T> x, int64_t first, bool add = false) {
  for (int64_t i = 0; i < rows; ++i) {
    T* to = x.row(first + i);
    const auto value = [=](int64_t d) {
      return load(slab + (d / W * total + i) * W + d % W) * factor;
    };
    if (add)
      for_lanes(D, [=](int64_t d, auto m) { store(to + d, load(to + d, m) + value(d), m); });
    else
      for_lanes(D, [=](int64_t d, auto m) { store(to + d, value(d), m); });
  }
}

// Writes factor * x into the rows [first, first + rows) of `to`, or adds it with `add`. x is given
// by its column slabs.
template <class T>
MT_INLINE void unpack_columns(const float* x, int64_t rows, int64_t D, float factor, Rows<T> to,
                              int64_t first, bool add) {
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t d = 0; d < D; d += kLanes) {
      const float* from = x + (r / W * D + d) * W + r % W;
      const int64_t lines = min_of(kLanes, D - d), height = min_of(kLanes, rows - r);
      Vf v[kLanes];
      for (int i = 0; i < kLanes; ++i) v[i] = i < lines ? load(from + i * W) * factor : Vf{};
      transpose(v);
      const auto put = [&](auto lanes) {
        for (int64_t i = 0; i < height; ++i) {
          T* line = to.row(first + r + i) + d;
          store(line, add ? load(line, lanes) + v[i] : v[i], lanes);
        }
      };
      lines == kLanes ? put(Full{}) : put(Part{int(lines)});
    }
}

// Returns where part i begins if n rows are split evenly into `parts` parts; part i ends where part
// i + 1 begins.
MT_INLINE int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  return i * (n / parts) + min_of(i, n % parts);
}

// --- tiles ---

enum class Operand {
  slabs,   // row slabs
  slab_t,  // the transpose of one row slab
};

struct TileArgs {
  const float* a;
  int64_t a_slab;  // floats between slabs of A; not used for slab_t
  const float* b;
  int64_t k;
  float* out;  // rows out_ld apart
  int64_t out_ld;
  // out = decay[row] * out + A B. If `decay` is null: out += A B with `add`, else out = A B.
  const float* decay;
  bool add;
};

template <int ROWS, int VECTORS, Operand A>
void tile(const TileArgs& t) {
  Vf sum[ROWS][VECTORS]{};
  if constexpr (A == Operand::slabs) {
    const float *a = t.a, *b = t.b;
    int64_t k = t.k;
    for (; k > W; k -= W, a += t.a_slab, b += W * W)
      multiply_add<ROWS, VECTORS, W, 1>(a, b, W, sum);
    multiply_add<ROWS, VECTORS, W, 1>(a, b, k, sum);
  } else {
    multiply_add<ROWS, VECTORS, 1, W>(t.a, t.b, t.k, sum);
  }
  float* const first = t.out;
  const int64_t ld = t.out_ld;
  const auto finish = [&](auto before) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) {
        float* out = first + i * ld + v * kLanes;
        store(out, before(out, i, sum[i][v]));
      }
  };
  if (const float* const decay = t.decay)
    finish([decay](const float* out, int i, Vf x) { return load(out) * splat(decay[i]) + x; });
  else if (t.add)
    finish([&](const float* out, int, Vf x) { return load(out) + x; });
  else
    finish([&](const float*, int, Vf x) { return x; });
}

using Tile = void (*)(const TileArgs&);

template <int VECTORS, Operand A, int ROWS = 1>
MT_INLINE Tile pick_rows(int64_t rows) {
  if constexpr (ROWS < kTileRows)
    if (rows != ROWS) return pick_rows<VECTORS, A, ROWS + 1>(rows);
  return tile<ROWS, VECTORS, A>;
}

// Returns the tile function for `rows` rows and `columns` columns, which it rounds up to full
// vectors.
template <Operand A>
MT_INLINE Tile pick_tile(int64_t rows, int64_t columns) {
  return columns > kLanes ? pick_rows<kTileVectors, A>(rows) : pick_rows<1, A>(rows);
}

// --- softmax ---

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// 2^x for x <= 1, to about 1 ulp; below -126 it is 0. x = n + r, |r| <= 1/2; the coefficients
// interpolate 2^r at the Chebyshev nodes, with an error of 3e-9.
MT_INLINE Vf vexp2(Vf x) {
  const Vf clamped = vmax(splat(-126.0f), x);
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const Vf shifted = clamped + 12582912.0f;
  const Vf r = clamped - (shifted - 12582912.0f);
  Vf p = splat(1.5461444696e-4f);
  p = p * r + 1.3400428177e-3f;
  p = p * r + 9.6180566785e-3f;
  p = p * r + 5.5503272267e-2f;
  p = p * r + 2.4022650922e-1f;
  p = p * r + 6.9314720670e-1f;
  p = p * r + 1.0f;
  const Vf result = (Vf)((Vi)p + ((Vi)shifted << 23));
  return x < -126.0f ? Vf{} : x == x ? result : x;  // the exponent would hide a NaN's payload
}

// Caps scores of base 2. They are log2(e) times the scores that AttentionShape::cap refers to.
struct ScoreCap {
  float cap, inverse;  // cap 0: none

  explicit ScoreCap(float of) : cap(of * kLog2E), inverse(of > 0 ? 1 / (of * kLog2E) : 0) {}
  explicit operator bool() const { return cap > 0; }
  __attribute__((always_inline)) Vf capped(Vf x) const { return vtanh(x * inverse) * cap; }
  // Returns the derivative of the cap at a score whose capped value is `y`.
  __attribute__((always_inline)) Vf slope(Vf y) const {
    const Vf t = y * inverse;
    return 1.0f - t * t;
  }
};

MT_INLINE Vi lane_numbers() {
  Vi lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane;
}

// The keys [begin, end) that a row attends to.
struct Seen {
  int64_t begin, end;
};

// Returns the keys that `row` attends to; both ends increase with the row. The search for the row's
// document starts at `document`, and moves it forward: the caller must request rows in order.
MT_INLINE Seen seen_by(const AttentionShape& s, int64_t row, int64_t& document) {
  Seen seen{0, s.Skv};
  int64_t diagonal = row + s.q_start;
  if (s.q_documents.begin) {
    const int32_t *q_end = data_of<int32_t>(s.q_documents.end),
                  *kv_end = data_of<int32_t>(s.kv_documents.end);
    while (document < s.q_documents.begin.count && q_end[document] <= row) ++document;
    const int64_t before = document > 0 ? kv_end[document - 1] : 0;
    if (document == s.q_documents.begin.count ||
        row < data_of<int32_t>(s.q_documents.begin)[document])
      return {before, before};
    seen = {data_of<int32_t>(s.kv_documents.begin)[document], kv_end[document]};
    diagonal = row + kv_end[document] - q_end[document];
  }
  if (s.causal) seen.end = max_of(seen.begin, min_of(seen.end, diagonal + 1));
  if (s.window > 0) seen.begin = max_of(seen.begin, diagonal - s.window + 1);
  seen.begin = min_of(seen.begin, seen.end);
  return seen;
}

// Some rows of a block of queries, at most as many as a tile has, and the keys of a block of keys
// that some of them attend to: [c0, c1), where c0 is a multiple of W. They are none if c1 <= c0.
struct Panel {
  int64_t row0, rows, c0, c1;
  bool any() const { return c0 < c1; }
  bool sees(int64_t slab) const { return c0 <= slab && slab < c1; }
};

// Returns the panel of the rows [row0, end).
MT_INLINE Panel panel_of(const Seen* seen, int64_t row0, int64_t end, int64_t key0, int64_t keys) {
  return {row0, end - row0, max_of(0, seen[row0].begin - key0) / W * W,
          min_of(keys, seen[end - 1].end - key0)};
}

MT_INLINE int64_t lse_at(const AttentionShape& s, int64_t b, int64_t head) {
  return (b * s.A + head) * (s.lse_stride ? s.lse_stride : s.Sq);
}

// Calls plain(i) for the vectors of [0, columns) that lie inside [u, v), edge(i, mask) for those
// that lie partly inside, and none(i) for those outside.
template <class Plain, class Edge, class None>
MT_INLINE void for_seen(int64_t columns, int64_t u, int64_t v, const Plain& plain, const Edge& edge,
                        const None& none) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    if (i + kLanes <= u || i >= v || u >= v)
      none(i);
    else if (i >= u && i + kLanes <= v)
      plain(i);
    else
      edge(i, (lane_numbers() >= int32_t(u - i)) & (lane_numbers() < int32_t(v - i)));
  }
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
