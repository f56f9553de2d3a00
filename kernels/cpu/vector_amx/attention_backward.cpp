// Backward of kernels/attention.h for bf16 on AMX tiles, in the tasks of attention_tasks.h. Every
// sum has the order of the sequence. Probabilities and the gradients of scores are computed in fp32
// and rounded to bf16 before they are multiplied.
#include "kernels/cpu/vector/attention_tasks.h"
#include "kernels/cpu/vector_amx/attention_tiles.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 256, kRows = 128;  // keys or query rows in a block

struct Task {
  const AttentionShape& shape;
  const Share& share;
  int64_t D, Dv;  // padded
  float factor;   // scale of the scores, base 2
  // The block of keys: K and V as A of S^T = K Q^T and dP^T = V dO^T, K^T as A of dQ^T = K^T dS^T.
  int64_t key0, keys;
  float *k_steps, *v_steps, *k_steps_t;
  float *dkeys, *dvalues;
  // The block of queries: B of the first two GEMMs, then of dK = dS^T Q and dV = P^T dO.
  int64_t row0, rows;
  float *q_pairs_t, *dout_pairs_t, *q_pairs, *dout_pairs;
  float *probabilities, *dscores;  // P^T and dS^T as A, steps of 32 rows
  float* dscore_pairs;             // one panel of rows: dS^T as B of dQ^T
  float* squares;                  // room for S^T and dP^T of two squares
  const float *lse, *delta;        // starting at the block's first row; lse in base 2
  const Seen* seen;
  float* dq;  // dQ^T of the head: the squares of the share's rows, panel after panel
  ScoreCap cap;
};

MT_INLINE void clear(float* p, int64_t floats) {
  for (int64_t i = 0; i < floats; i += kLanes) store(p + i, Vf{});
}

MT_INLINE __m512i narrow_line(const Vf (&x)[2]) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
}

// Returns the rows of a panel in the order that unpacking pairs within quarters of a vector gives.
MT_INLINE Vf in_order(const float* line, int half) {
  alignas(64) static constexpr int32_t kFrom[2][16] = {
      {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23},
      {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
  return (Vf)_mm512_maskz_permutex2var_ps(
      0xffff, (__m512)load(line), _mm512_load_si512(kFrom[half]), (__m512)load(line + kTile));
}

// Turns S^T and dP^T of one square into P^T and dS^T in bf16.
template <bool WHOLE, bool CAPPED>
MT_INLINE void square_gradients(const Task& t, const PanelSeen& seen, int64_t c, const float* s,
                                const float* dp, const Lanes32& lse, const Lanes32& delta,
                                float* p_line, float* ds_line, float* ds_pairs) {
  const float factor = CAPPED ? 1.0f : t.factor;  // capped scores already include it
  for (int64_t j = 0; j < kSide; j += 2) {
    __m512i gradient[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      Vf p[2], ds[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int64_t at = (j + i) * kSide + half * kTile;
        p[half] = power_of_2(load(s + at) * factor - lse.of[half]);
        ds[half] = p[half] * (load(dp + at) - delta.of[half]);
        if constexpr (CAPPED) ds[half] *= t.cap.slope(load(s + at));
        if constexpr (!WHOLE) {
          const Vi in = seen.sees(c + j + i, half);
          p[half] = in ? p[half] : Vf{};
          ds[half] = in ? ds[half] : Vf{};
        }
      }
      gradient[i] = narrow_line(ds);
      _mm512_store_si512(p_line + (j + i) * kTile, narrow_line(p));
      _mm512_store_si512(ds_line + (j + i) * kTile, gradient[i]);
    }
    _mm512_store_si512(ds_pairs + j / 2 * kSide, _mm512_unpacklo_epi16(gradient[0], gradient[1]));
    _mm512_store_si512(ds_pairs + j / 2 * kSide + kTile,
                       _mm512_unpackhi_epi16(gradient[0], gradient[1]));
  }
}

// Computes the probabilities and the gradients of the scores of one panel of rows, then its share
// of dq.
MT_INLINE void rows_panel(const Task& t, int64_t i0) {
  const PanelSeen seen = panel_seen(t.seen + i0, min_of(kSide, t.rows - i0), t.key0, t.keys);
  if (seen.c1 <= seen.c0) return;
  const Lanes32 lse = load_lanes(t.lse + i0), delta = load_lanes(t.delta + i0);
  float* s = t.squares;
  for (int64_t c = seen.c0; c < seen.c1; c += kSide) {
    float* dp = s + kSquare;
    multiply_square<false>(t.k_steps + c * kTile, kKeys * kTile, t.q_pairs_t + i0 * t.D / 2,
                           t.D / kStep, s);
    multiply_square<false>(t.v_steps + c * kTile, kKeys * kTile, t.dout_pairs_t + i0 * t.Dv / 2,
                           t.Dv / kStep, dp);
    const int64_t line = (i0 / kStep * kKeys + c) * kTile;
    float *p_line = t.probabilities + line, *ds_line = t.dscores + line;
    float* pairs = t.dscore_pairs + (c - seen.c0) / 2 * kSide;
    const auto gradients = [&]<bool CAPPED>() {
      if (seen.covers(c))
        square_gradients<true, CAPPED>(t, seen, c, s, dp, lse, delta, p_line, ds_line, pairs);
      else
        square_gradients<false, CAPPED>(t, seen, c, s, dp, lse, delta, p_line, ds_line, pairs);
    };
    if (t.cap) {
      cap_square(t.cap, t.factor, s);
      gradients.template operator()<true>();
    } else {
      gradients.template operator()<false>();
    }
    s = s == t.squares ? t.squares + 2 * kSquare : t.squares;  // tiles need not wait for vectors
  }
  if (!t.share.dq) return;
  float* dq = t.dq + (t.row0 - t.share.row0 + i0) * t.D;
  for (int64_t d = 0; d < t.D; d += kSide)
    multiply_square<true>(t.k_steps_t + seen.c0 / kStep * t.D * kTile + d * kTile, t.D * kTile,
                          t.dscore_pairs, div_up(seen.c1 - seen.c0, kStep), dq + d * kSide);
}

// Adds the block's share of dv and dk of 32 keys. rows_panel() has written them for a range of
// panels, since the keys that rows attend to move with the rows.
MT_INLINE void keys_panel(const Task& t, int64_t j0) {
  int64_t begin = 0, end = 0;
  for (int64_t i0 = 0; i0 < t.rows; i0 += kSide) {
    int64_t c0 = 0, c1 = 0;
    find_squares(t.seen + i0, min_of(kSide, t.rows - i0), t.key0, t.keys, c0, c1);
    if (c0 > j0 || c1 <= j0) continue;
    if (end == 0) begin = i0 / kStep;
    end = i0 / kStep + 1;
  }
  if (begin == end) return;
  for (int64_t d = 0; d < max_of(t.D, t.Dv); d += kSide) {
    const int64_t from = (begin * kKeys + j0) * kTile, of_b = d / 2 * kRows + begin * kTile * kSide;
    const int64_t to = (d / kSide * kKeys + j0) * kSide;
    if (d < t.Dv)
      multiply_square<true>(t.probabilities + from, kKeys * kTile, t.dout_pairs + of_b, end - begin,
                            t.dvalues + to);
    if (d < t.D)
      multiply_square<true>(t.dscores + from, kKeys * kTile, t.q_pairs + of_b, end - begin,
                            t.dkeys + to);
  }
}

MT_INLINE void block(const Task& t, const AttentionBackward& args, int64_t b, int64_t a) {
  const int64_t D = t.shape.D, Dv = t.shape.value_dim();
  const auto q = rows_of<bf16>(args.q, t.shape, b, a, D),
             dout = rows_of<bf16>(args.dout, t.shape, b, a, Dv);
  pack_pairs_t(q, t.row0, t.rows, D, t.q_pairs_t);
  pack_pairs_t(dout, t.row0, t.rows, Dv, t.dout_pairs_t);
  for (int64_t i0 = 0; i0 < t.rows; i0 += kSide) rows_panel(t, i0);
  if (!t.share.dkv) return;
  pack_pairs(q, t.row0, t.rows, D, kRows, t.q_pairs);
  pack_pairs(dout, t.row0, t.rows, Dv, kRows, t.dout_pairs);
  for (int64_t j0 = 0; j0 < t.keys; j0 += kSide) keys_panel(t, j0);
}

MT_INLINE float dot(const bf16* a, const bf16* b, int64_t n) {
  Vf sum = Vf{};
  for_lanes(n, [&](int64_t i, auto m) { sum += load(a + i, m) * load(b + i, m); });
  return sum_lanes(sum);
}

// Data about the rows of a task that all its blocks need.
struct RowFacts {
  Seen* seen;
  float *lse, *delta;  // for each head in turn
  int64_t lines;       // rows from one head to the next
};

void find_row_facts(const AttentionBackward& args, int64_t b, int64_t g, const Share& share,
                    const RowFacts& to) {
  const AttentionShape& s = args.shape;
  const int64_t group = s.A / s.G, rows = share.row1 - share.row0, Dv = s.value_dim();
  int64_t document = 0;
  for (int64_t i = 0; i < rows; ++i) to.seen[i] = seen_by(s, share.row0 + i, document);
  const RowRange used = rows_that_see(share, to.seen, kRows);
  clear(to.lse, group * to.lines);
  clear(to.delta, group * to.lines);
  for (int64_t h = 0; h < group; ++h) {
    const int64_t a = g * group + h;
    const auto out = rows_of<bf16>(args.out, s, b, a, Dv),
               dout = rows_of<bf16>(args.dout, s, b, a, Dv);
    const float* known = data_of<float>(args.lse) + lse_at(s, b, a);
    for (int64_t i = used.begin; i < used.end; ++i) {
      const int64_t row = share.row0 + i;
      to.lse[h * to.lines + i] = known[row] * kLog2E;
      to.delta[h * to.lines + i] = dot(out.row(row), dout.row(row), Dv);
    }
  }
}

template <class Out>
MT_INLINE void write_dkv(const Task& t, const AttentionBackward& args, int64_t b, int64_t g) {
  const AttentionShape& s = t.shape;
  unpack_rows(t.dkeys, kKeys, t.keys, s.D, s.scale, rows_of<Out>(args.dk, s, b, g, s.D), t.key0,
              args.add_dkv);
  unpack_rows(t.dvalues, kKeys, t.keys, s.value_dim(), 1.0f,
              rows_of<Out>(args.dv, s, b, g, s.value_dim()), t.key0, args.add_dkv);
}

template <class Out>
MT_INLINE void write_dq(const Task& t, const AttentionBackward& args, int64_t b, int64_t a) {
  const AttentionShape& s = t.shape;
  const int64_t rows = t.share.row1 - t.share.row0;
  const Vf scale = splat(s.scale);
  for (int64_t i0 = 0; i0 < rows; i0 += kSide) {
    const float* from = t.dq + i0 * t.D;
    unpack_columns([=](int64_t d, int half) { return in_order(from + d * kSide, half); }, s.D,
                   {{scale, scale}}, rows_of<Out>(args.dq, s, b, a, s.D), t.share.row0 + i0,
                   min_of(kSide, rows - i0), args.add_dq);
  }
}

void backward(const AttentionBackward& args, int64_t head, const Share& share) {
  const AttentionShape& s = args.shape;
  const int64_t b = head / s.G, g = head % s.G;
  const int64_t D = padded(s.D), Dv = padded(s.value_dim()), group = s.A / s.G;
  const int64_t rows = share.row1 - share.row0;
  const int64_t lines = padded(rows), of_head = share.dq ? lines * D : 0;
  const int64_t of_seen = lines * int64_t(sizeof(Seen) / sizeof(float));
  float* next =
      thread_scratch(group * (of_head + 2 * lines) + of_seen + kKeys * (4 * D + 3 * Dv) / 2 +
                     kRows * (D + Dv) + kKeys * kRows + kKeys / 2 * kSide + 4 * kSquare);
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  RowFacts facts{.seen = reinterpret_cast<Seen*>(take(of_seen)),
                 .lse = take(group * lines),
                 .delta = take(group * lines),
                 .lines = lines};
  find_row_facts(args, b, g, share, facts);
  float* dq = take(group * of_head);
  Task t{.shape = s,
         .share = share,
         .D = D,
         .Dv = Dv,
         .factor = s.scale * kLog2E,
         .cap = ScoreCap(s.cap)};
  t.k_steps = take(kKeys * D / 2);
  t.v_steps = take(kKeys * Dv / 2);
  t.k_steps_t = take(kKeys * D / 2);
  t.dkeys = take(kKeys * D);
  t.dvalues = take(kKeys * Dv);
  t.q_pairs_t = take(kRows * D / 2);
  t.dout_pairs_t = take(kRows * Dv / 2);
  t.q_pairs = take(kRows * D / 2);
  t.dout_pairs = take(kRows * Dv / 2);
  t.probabilities = take(kKeys * kRows / 2);
  t.dscores = take(kKeys * kRows / 2);
  t.dscore_pairs = take(kKeys / 2 * kSide);
  t.squares = take(4 * kSquare);
  clear(dq, group * of_head);

  const auto k = rows_of<bf16>(args.k, s, b, g, s.D),
             v = rows_of<bf16>(args.v, s, b, g, s.value_dim());
  for (t.key0 = share.key0; t.key0 < share.key1; t.key0 += kKeys) {
    t.keys = min_of(kKeys, share.key1 - t.key0);
    if (!share.dkv && !any_sees(facts.seen, rows, t.key0, t.key0 + t.keys)) continue;
    pack_steps(k, t.key0, t.keys, s.D, kKeys, t.k_steps);
    pack_steps(v, t.key0, t.keys, s.value_dim(), kKeys, t.v_steps);
    if (share.dq) pack_steps_t(k, t.key0, t.keys, s.D, t.k_steps_t);
    if (share.dkv) clear(t.dkeys, kKeys * (D + Dv));  // and dvalues, which follow
    for (int64_t h = 0; h < group; ++h)
      for (t.row0 = share.row0; t.row0 < share.row1; t.row0 += kRows) {
        const int64_t at = t.row0 - share.row0;
        t.rows = min_of(kRows, share.row1 - t.row0);
        t.seen = facts.seen + at;
        if (t.seen[0].begin >= t.key0 + t.keys || t.seen[t.rows - 1].end <= t.key0) continue;
        t.lse = facts.lse + h * lines + at;
        t.delta = facts.delta + h * lines + at;
        t.dq = dq + h * of_head;
        block(t, args, b, g * group + h);
      }
    if (!share.dkv) continue;
    args.dk.data.dtype == DType::f32 ? write_dkv<float>(t, args, b, g)
                                     : write_dkv<bf16>(t, args, b, g);
  }
  for (int64_t h = 0; share.dq && h < group; ++h) {
    t.dq = dq + h * of_head;
    const int64_t a = g * group + h;
    args.dq.data.dtype == DType::f32 ? write_dq<float>(t, args, b, a)
                                     : write_dq<bf16>(t, args, b, a);
  }
}

}  // namespace

void run(const AttentionBackward& args);
void run(const AttentionBackward& args) {
  for_backward_tasks(args.shape, kRows, kKeys, [&](int64_t head, const Share& share) {
    configure_tiles();
    backward(args, head, share);
    _tile_release();
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
