// Forward of kernels/attention.h for bf16 on AMX tiles. A task owns a block of query rows of all
// heads that share a kv head, and iterates over blocks of keys with fixed bounds. Therefore the
// result does not depend on the threads or the size of a task. Scores and sums are fp32;
// probabilities are rounded to bf16 before they are multiplied by V; their sums use the unrounded
// values.
#include "kernels/cpu/vector_amx/attention_tiles.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 256;           // keys in a block
constexpr int64_t kMaxRows = 256;        // query rows of a task, per head
constexpr int64_t kMaxFloats = 1 << 17;  // floats of the sums in a task: 512 KiB

// Running maximum (base 2) and sum of a panel's rows.
struct Softmax {
  Lanes32 top, sum;
  bool started;
};

struct Task {
  int64_t D, Dv, rows;  // padded D and Dv; query rows
  const Seen* seen;     // keys of each row
  int64_t key0, keys;   // the current block
  float factor;         // scale of the scores, base 2
  const float *k_steps, *v_steps_t;
  float *scores, *pairs;  // one panel: S^T; and P^T as B of O^T = V^T P^T
  const float* q;         // pairs of one head
  float* out;             // O^T of one head: squares, panel after panel
  ScoreCap cap;
};

// Returns each row's maximum over `top` and the scores of a square.
template <bool WHOLE>
MT_INLINE Lanes32 square_top(const float* scores, const PanelSeen& seen, int64_t c, float factor,
                             Lanes32 top) {
  const Vf lowest = splat(-__builtin_inff());
  Lanes32 other = top;
#pragma GCC unroll 4
  for (int64_t j = 0; j < kSide; ++j) {
    Lanes32& to = j % 2 ? other : top;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vf x = load(scores + j * kSide + half * kTile) * factor;
      if constexpr (!WHOLE) x = seen.sees(c + j, half) ? x : lowest;
      to.of[half] = vmax(x, to.of[half]);  // ignores a NaN; the sum preserves it
    }
  }
  return {{vmax(other.of[0], top.of[0]), vmax(other.of[1], top.of[1])}};
}

// Turns scores into probabilities relative to `top`, in bf16, and returns their sums plus `sum`.
template <bool WHOLE>
MT_INLINE Lanes32 square_probabilities(const float* scores, const PanelSeen& seen, int64_t c,
                                       float factor, const Lanes32& top, Lanes32 sum,
                                       float* pairs) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
#pragma GCC unroll 2
  for (int64_t j = 0; j < kSide; j += 2)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vf p[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        p[i] = power_of_2(load(scores + (j + i) * kSide + half * kTile) * factor - top.of[half]);
        if constexpr (!WHOLE) p[i] = seen.sees(c + j + i, half) ? p[i] : Vf{};
      }
      sum.of[half] += p[0] + p[1];
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)p[1], (__m512)p[0]);
      _mm512_store_si512(pairs + j / 2 * kSide + half * kTile,
                         _mm512_maskz_permutexvar_epi16(~0u, interleave, both));
    }
  return sum;
}

MT_INLINE void attend(const Task& t, Softmax& state, int64_t panel) {
  const int64_t row0 = panel * kSide, rows = min_of(kSide, t.rows - row0);
  const PanelSeen seen = panel_seen(t.seen + row0, rows, t.key0, t.keys);
  if (seen.c1 <= seen.c0) return;
  const float* q = t.q + row0 * t.D / 2;
  float* out = t.out + row0 * t.Dv;
  Lanes32 top = state.top;
  const float factor = t.cap ? 1.0f : t.factor;  // capped scores already include it
  for (int64_t c = seen.c0; c < seen.c1; c += kSide) {
    float* square = t.scores + (c - seen.c0) * kSide;
    multiply_square<false>(t.k_steps + c * kTile, kKeys * kTile, q, t.D / kStep, square);
    if (t.cap) cap_square(t.cap, t.factor, square);
    top = seen.covers(c) ? square_top<true>(square, seen, c, factor, top)
                         : square_top<false>(square, seen, c, factor, top);
  }
  // Rows without a key so far keep -inf, whose difference would be NaN.
  Lanes32 decay, shift;
  for (int half = 0; half < 2; ++half) {
    const Vf before = state.top.of[half], now = top.of[half];
    decay.of[half] = before == now ? splat(1.0f) : power_of_2(before - now);
    shift.of[half] = now == -__builtin_inff() ? Vf{} : now;
    state.sum.of[half] *= decay.of[half];
  }
  state.top = top;
  for (int64_t c = seen.c0; c < seen.c1; c += kSide) {
    const float* square = t.scores + (c - seen.c0) * kSide;
    float* pairs = t.pairs + (c - seen.c0) / 2 * kSide;
    state.sum = seen.covers(c)
                    ? square_probabilities<true>(square, seen, c, factor, shift, state.sum, pairs)
                    : square_probabilities<false>(square, seen, c, factor, shift, state.sum, pairs);
  }
  if (state.started)
    for (int64_t i = 0; i < t.Dv * kSide; i += kSide)
      store_lanes(out + i, {{load(out + i) * decay.of[0], load(out + i + kTile) * decay.of[1]}});
  const int64_t steps = div_up(seen.c1 - seen.c0, kStep);
  const float* v = t.v_steps_t + seen.c0 / kStep * t.Dv * kTile;
  for (int64_t d = 0; d < t.Dv; d += kSide) {
    if (state.started)
      multiply_square<true>(v + d * kTile, t.Dv * kTile, t.pairs, steps, out + d * kSide);
    else
      multiply_square<false>(v + d * kTile, t.Dv * kTile, t.pairs, steps, out + d * kSide);
  }
  state.started = true;
}

template <class T>
MT_INLINE void finish(const Task& t, const Softmax* states, int64_t Dv, Rows<T> out, int64_t q0,
                      float* lse) {
  for (int64_t row0 = 0; row0 < t.rows; row0 += kSide) {
    const Softmax& state = states[row0 / kSide];
    const int64_t rows = min_of(kSide, t.rows - row0);
    alignas(64) float sum[kSide], top[kSide];
    store_lanes(sum, state.sum);
    store_lanes(top, state.top);
    for (int64_t i = 0; i < rows; ++i)
      lse[q0 + row0 + i] = sum[i] == 0 ? -__builtin_inff() : top[i] * kLn2 + __builtin_logf(sum[i]);
    Lanes32 factor;
    for (int half = 0; half < 2; ++half)
      factor.of[half] = state.sum.of[half] == 0.0f ? Vf{} : splat(1.0f) / state.sum.of[half];
    const float* from = t.out + row0 * t.Dv;
    const bool started = state.started;
    unpack_columns(
        [=](int64_t d, int half) { return started ? load(from + d * kSide + half * kTile) : Vf{}; },
        Dv, factor, out, q0 + row0, rows, false);
  }
}

void forward(const AttentionForward& f, int64_t b, int64_t g, int64_t q0, int64_t q1) {
  const AttentionShape& s = f.shape;
  const int64_t D = padded(s.D), Dv = padded(s.value_dim()), group = s.A / s.G, rows = q1 - q0;
  const int64_t of_q = padded(rows) * D / 2, of_out = padded(rows) * Dv;
  const int64_t panels = div_up(rows, kSide);
  const int64_t states = group * panels * int64_t(sizeof(Softmax) / sizeof(float));
  float* next = thread_scratch(states + group * (of_q + of_out) + kKeys * (D + Dv) / 2 +
                               kKeys * kSide + kKeys * kSide / 2);
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  Softmax* state = reinterpret_cast<Softmax*>(take(states));
  float *q = take(group * of_q), *out = take(group * of_out);
  float *k_steps = take(kKeys * D / 2), *v_steps_t = take(kKeys * Dv / 2);
  Seen seen[kMaxRows];
  int64_t document = 0;
  for (int64_t i = 0; i < rows; ++i) seen[i] = seen_by(s, q0 + i, document);
  for (int64_t h = 0; h < group; ++h)
    pack_pairs_t(rows_of<bf16>(f.q, s, b, g * group + h, s.D), q0, rows, s.D, q + h * of_q);
  const Vf lowest = splat(-__builtin_inff());
  for (int64_t i = 0; i < group * panels; ++i)
    state[i] = {{{lowest, lowest}}, {{Vf{}, Vf{}}}, false};

  Task t{.D = D,
         .Dv = Dv,
         .rows = rows,
         .seen = seen,
         .factor = s.scale * kLog2E,
         .k_steps = k_steps,
         .v_steps_t = v_steps_t,
         .scores = take(kKeys * kSide),
         .pairs = take(kKeys * kSide / 2),
         .cap = ScoreCap(s.cap)};
  const int64_t end = seen[rows - 1].end;
  for (t.key0 = seen[0].begin / kKeys * kKeys; t.key0 < end; t.key0 += kKeys) {
    t.keys = min_of(kKeys, end - t.key0);
    pack_steps(rows_of<bf16>(f.k, s, b, g, s.D), t.key0, t.keys, s.D, kKeys, k_steps);
    pack_steps_t(rows_of<bf16>(f.v, s, b, g, s.value_dim()), t.key0, t.keys, s.value_dim(),
                 v_steps_t);
    for (int64_t h = 0; h < group; ++h) {
      t.q = q + h * of_q;
      t.out = out + h * of_out;
      for (int64_t p = 0; p < panels; ++p) attend(t, state[h * panels + p], p);
    }
  }
  for (int64_t h = 0; h < group; ++h) {
    t.out = out + h * of_out;
    const int64_t a = g * group + h;
    float* lse = data_of<float>(f.lse) + lse_at(s, b, a);
    if (f.out.data.dtype == DType::f32)
      finish(t, state + h * panels, s.value_dim(), rows_of<float>(f.out, s, b, a, s.value_dim()),
             q0, lse);
    else
      finish(t, state + h * panels, s.value_dim(), rows_of<bf16>(f.out, s, b, a, s.value_dim()), q0,
             lse);
  }
}

}  // namespace

void run(const AttentionForward& f);
void run(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  if (s.B * s.Sq == 0) return;
  const int64_t width = s.A / s.G * padded(max_of(s.D, s.value_dim()));
  int64_t rows = max_of(kSide, min_of(kMaxRows, kMaxFloats / width / kSide * kSide));
  rows = padded(div_up(s.Sq, div_up(s.Sq, rows)));
  const int64_t blocks = div_up(s.Sq, rows), heads = s.B * s.G;
  parallel(heads * blocks, 1, [&](int64_t begin, int64_t) {
    // Under a causal mask the last rows attend to the most keys. They come first: threads then end
    // together.
    const int64_t block = blocks - 1 - begin / heads, head = begin % heads;
    configure_tiles();
    forward(f, head / s.G, head % s.G, block * rows, min_of(s.Sq, (block + 1) * rows));
    _tile_release();
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
