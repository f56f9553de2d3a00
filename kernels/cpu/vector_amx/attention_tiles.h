// Code that attention's forward and backward on AMX tiles share: packed operands, and GEMMs on
// them.
//
// Scores are computed as S^T = K Q^T: its lines are keys and its lanes are query rows. Maxima, sums
// and masks of rows are then computed per lane. The lines of P^T are the left operand of dV = P^T
// dO, and pairs of its lines are the right operand of O^T = V^T P^T.
//
// All sizes are padded with zeros to multiples of 32 (kSide). Operands are bf16. A left operand A
// (M, K) is stored as
//   steps   [K / 32][M][32 k]
// and a right operand B (K, N) as words of two consecutive k:
//   pairs   [N / 32][K / 2][32 columns]
// Results are fp32 squares of 32 x 32: [N / 32][M][32 columns].
#pragma once
#include "kernels/cpu/vector/attention_tile.h"
#include "kernels/cpu/vector_amx/transpose.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

static_assert(kSide == W);
constexpr int64_t kSquare = kSide * kSide;

MT_INLINE int64_t padded(int64_t n) { return div_up(n, kSide) * kSide; }
// Returns the size of n bf16 elements in floats.
MT_INLINE int64_t halves(int64_t n) { return n / 2; }

// Loads 32 elements. Only `count` of them exist; the others are 0.
MT_INLINE Vf load_line(const bf16* p, int64_t count) {
  if (count >= kStep) {
    Vf v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  return (Vf)_mm512_maskz_loadu_epi16((__mmask32(1) << max_of(count, 0)) - 1, p);
}

// --- packing: rows [first, first + rows) of x, D elements each, and zeros ---

// As A = X: steps over D. A step has `total` rows; the padded rows of x are written.
MT_INLINE void pack_steps(Rows<const bf16> x, int64_t first, int64_t rows, int64_t D, int64_t total,
                          float* out) {
  for (int64_t i = 0; i < padded(rows); ++i)
    for (int64_t d = 0; d < D; d += kStep)
      store(out + (d / kStep * total + i) * kTile,
            i < rows ? load_line(x.row(first + i) + d, D - d) : Vf{});
}

// As A = X^T: steps over rows.
MT_INLINE void pack_steps_t(Rows<const bf16> x, int64_t first, int64_t rows, int64_t D,
                            float* out) {
  for (int64_t r = 0; r < rows; r += kStep, out += padded(D) * kTile)
    for (int64_t d = 0; d < D; d += kSide) {
      if (r + kStep <= rows && d + kSide <= D) {
        transpose_step(x.row(first + r) + d, x.stride, out + d * kTile);
        continue;
      }
      alignas(64) bf16 edge[kStep * kSide];
      for (int64_t i = 0; i < kStep; ++i)
        _mm512_store_si512(edge + i * kSide,
                           r + i < rows ? (__m512i)load_line(x.row(first + r + i) + d, D - d)
                                        : _mm512_setzero_si512());
      transpose_step(edge, kSide, out + d * kTile);
    }
}

// As B = X^T: pairs along D.
MT_INLINE void pack_pairs_t(Rows<const bf16> x, int64_t first, int64_t rows, int64_t D,
                            float* out) {
  const int64_t pairs = padded(D) / 2;
  for (int64_t r = 0; r < padded(rows); r += kTile)
    for (int64_t d = 0; d < D; d += kStep) {
      Vf v[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i)
        v[i] = r + i < rows ? load_line(x.row(first + r + i) + d, D - d) : Vf{};
      transpose(v);
      float* to = out + (r / kSide * pairs + d / 2) * kSide + r % kSide;
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) store(to + i * kSide, v[i]);
    }
}

// As B = X: pairs along rows, with room for `total` rows.
MT_INLINE void pack_pairs(Rows<const bf16> x, int64_t first, int64_t rows, int64_t D, int64_t total,
                          float* out) {
  const auto wide = [](const bf16* p, int64_t count) {
    const __mmask16 lanes = __mmask16((1u << max_of(0, min_of(count, kTile))) - 1);
    return (Vu)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(lanes, p));
  };
  for (int64_t i = 0; i < padded(rows); i += 2)
    for (int64_t d = 0; d < padded(D); d += kTile) {
      const Vu low = i < rows ? wide(x.row(first + i) + d, D - d) : Vu{};
      const Vu high = i + 1 < rows ? wide(x.row(first + i + 1) + d, D - d) : Vu{};
      store(out + (d / kSide * (total / 2) + i / 2) * kSide + d % kSide, (Vf)(low | high << 16));
    }
}

// --- GEMMs ---

// C = A B or C += A B for one square of C. `a` and `b` are its first row and column, `a_step` the
// floats from one step of A to the next.
template <bool ADD>
MT_INLINE void multiply_square(const float* a, int64_t a_step, const float* b, int64_t steps,
                               float* c) {
  order_memory();
  if constexpr (ADD) {
    _tile_loadd(0, c, kSide * 4);
    _tile_loadd(1, c + kTile, kSide * 4);
    _tile_loadd(2, c + kTile * kSide, kSide * 4);
    _tile_loadd(3, c + kTile * kSide + kTile, kSide * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (; steps > 0; --steps, a += a_step, b += kTile * kSide) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, kSide * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTile, kSide * 4);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTile * kTile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, kSide * 4);
  _tile_stored(1, c + kTile, kSide * 4);
  _tile_stored(2, c + kTile * kSide, kSide * 4);
  _tile_stored(3, c + kTile * kSide + kTile, kSide * 4);
  order_memory();
}

// --- softmax ---

// 2^x to about 1 ulp, for x of any size: 2^floor(x) times a polynomial in the rest. It is 1 at 0,
// and was fitted over [0, 1) to a minimal relative error of 9e-8. NaN stays NaN, and 2^-inf is 0.
MT_INLINE Vf power_of_2(Vf x) {
  constexpr int kBelow = 1;  // the rest over the next lower integer
  const Vf r = (Vf)_mm512_maskz_reduce_ps(0xffff, (__m512)x, kBelow);
  Vf p = splat(1.8670015270e-3f);
  p = p * r + 9.0172998607e-3f;
  p = p * r + 5.5799726397e-2f;
  p = p * r + 2.4016450346e-1f;
  p = p * r + 6.9315129519e-1f;
  p = p * r + 1.0f;
  return (Vf)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)x);
}

// Turns a square of q k^T into capped scores of base 2; `factor` is the factor of scores.
MT_INLINE void cap_square(const ScoreCap& cap, float factor, float* square) {
  for (int64_t i = 0; i < kSquare; i += kLanes)
    store(square + i, cap.capped(load(square + i) * factor));
}

// 32 numbers, one for each row of a panel.
struct Lanes32 {
  Vf of[2];
};
MT_INLINE Lanes32 load_lanes(const float* p) { return {{load(p), load(p + kTile)}}; }
MT_INLINE void store_lanes(float* p, const Lanes32& x) {
  store(p, x.of[0]);
  store(p + kTile, x.of[1]);
}

// Which keys of a block the rows of a panel attend to: row i to those in [begin[i], end[i]); rows
// beyond the last to none.
struct PanelSeen {
  Vi begin[2], end[2];
  int64_t c0, c1;      // squares of the keys [c0, c1) are computed; c0 is a multiple of kSide
  int64_t all0, all1;  // every row attends to the keys [all0, all1)
  bool covers(int64_t c) const { return c >= all0 && c + kSide <= all1; }
  __attribute__((always_inline)) Vi sees(int64_t key, int half) const {
    const Vi k = int32_t(key) - Vi{};
    return (k >= begin[half]) & (k < end[half]);
  }
};

MT_INLINE void find_squares(const Seen* seen, int64_t rows, int64_t key0, int64_t keys, int64_t& c0,
                            int64_t& c1) {
  c0 = max_of(0, seen[0].begin - key0) / kSide * kSide;
  c1 = min_of(keys, seen[rows - 1].end - key0);
}

MT_INLINE PanelSeen panel_seen(const Seen* seen, int64_t rows, int64_t key0, int64_t keys) {
  PanelSeen p;
  find_squares(seen, rows, key0, keys, p.c0, p.c1);
  p.all0 = seen[rows - 1].begin - key0;
  p.all1 = rows == kSide ? min_of(keys, seen[0].end - key0) : p.all0;
  alignas(64) int32_t begin[kSide] = {}, end[kSide] = {};
  for (int64_t i = 0; i < rows; ++i) {
    begin[i] = int32_t(max_of(0, min_of(keys, seen[i].begin - key0)));
    end[i] = int32_t(max_of(0, min_of(keys, seen[i].end - key0)));
  }
  for (int half = 0; half < 2; ++half) {
    __builtin_memcpy(&p.begin[half], begin + half * kTile, sizeof(Vi));
    __builtin_memcpy(&p.end[half], end + half * kTile, sizeof(Vi));
  }
  return p;
}

// --- results ---

// Writes the transpose of (D, 32) fp32 lines, times the factor of each column, into `rows` rows of
// x, or adds it with `add`. `line(d, half)` returns 16 columns of line d.
template <class T, class Line>
MT_INLINE void unpack_columns(const Line& line, int64_t D, const Lanes32& factor, Rows<T> x,
                              int64_t first, int64_t rows, bool add) {
  for (int half = 0; half < 2 && half * kTile < rows; ++half)
    for (int64_t d = 0; d < D; d += kTile) {
      Vf v[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) v[i] = line(d + i, half) * factor.of[half];
      transpose(v);
      alignas(64) float block[kTile * kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) store(block + i * kTile, v[i]);
      const auto put = [&](auto lanes) {
        for (int64_t i = 0; i < min_of(kTile, rows - half * kTile); ++i) {
          T* to = x.row(first + half * kTile + i) + d;
          const Vf y = load(block + i * kTile);
          store(to, add ? load(to, lanes) + y : y, lanes);
        }
      };
      D - d >= kTile ? put(Full{}) : put(Part{int(D - d)});
    }
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
