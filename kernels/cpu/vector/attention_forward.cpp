// Forward of kernels/attention.h. A task owns a block of query rows of all heads that share a kv
// head, and iterates over blocks of keys with fixed bounds. Therefore the result does not depend on
// the threads or the size of a task.
#include "kernels/cpu/vector/attention_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 256;  // keys in a block
// Floats between rows of scores: not a power of two, therefore rows use different sets of the
// cache.
constexpr int64_t kLd = kKeys + 16;
constexpr int64_t kMaxRows = 256;        // query rows of a task, per head
constexpr int64_t kMaxFloats = 1 << 17;  // floats of q, or of the sums, in a task: 512 KiB

// Running maximum (base 2) and sum of a panel's rows, one row per lane.
struct Softmax {
  Vf top, sum;
  bool started;
};

struct Task {
  const AttentionShape& shape;
  int64_t rows, panels;              // query rows, and the panels into which they are split
  const Seen* seen;                  // keys of each row
  int64_t key0, keys;                // the current block
  const float *q, *keys_t, *values;  // q: row slabs of one head
  float *out, *scores;
  ScoreCap cap;
};

// Turns scores into probabilities relative to the running maximum. Returns the factors for the
// earlier sums.
MT_INLINE Vf update(const Task& t, Softmax& state, int64_t row0, int64_t rows, int64_t c0,
                    int64_t columns) {
  const float kInfinity = __builtin_inff();
  const int64_t first = t.key0 + c0;
  Vf line[kLanes];
  for (int i = 0; i < kLanes; ++i) line[i] = splat(-kInfinity);
  for (int64_t i = 0; i < rows; ++i) {
    const Seen seen = t.seen[row0 + i];
    const float* score = t.scores + i * kLd;
    Vf top = splat(-kInfinity);
    for_seen(
        columns, seen.begin - first, seen.end - first,
        [&](int64_t c) { top = vmax(load(score + c), top); },
        [&](int64_t c, Vi in) { top = vmax(in ? load(score + c) : top, top); }, [](int64_t) {});
    line[i] = top;
  }
  transpose(line);
  Vf top = state.top;
  for (int i = 0; i < kLanes; ++i) top = vmax(line[i], top);
  float tops[kLanes];
  store(tops, top);

  for (int i = 0; i < kLanes; ++i) line[i] = Vf{};
  for (int64_t i = 0; i < rows; ++i) {
    const Seen seen = t.seen[row0 + i];
    float* score = t.scores + i * kLd;
    const Vf shift = splat(tops[i]);
    Vf sum = Vf{};
    for_seen(
        columns, seen.begin - first, seen.end - first,
        [&](int64_t c) {
          const Vf p = vexp2(load(score + c) - shift);
          store(score + c, p);
          sum += p;
        },
        [&](int64_t c, Vi in) {
          const Vf p = in ? vexp2(load(score + c) - shift) : Vf{};
          store(score + c, p);
          sum += p;
        },
        [&](int64_t c) { store(score + c, Vf{}); });
    line[i] = sum;
  }
  transpose(line);
  Vf sum = line[0];
  for (int i = 1; i < kLanes; ++i) sum += line[i];
  // Rows without a key so far keep -inf, whose difference would be NaN.
  const Vf decay = state.top == top ? splat(1.0f) : vexp2(state.top - top);
  state.sum = state.sum * decay + sum;
  state.top = top;
  return decay;
}

MT_INLINE void cap_scores(const ScoreCap& cap, float* scores, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < columns; c += kLanes)
      store(scores + i * kLd + c, cap.capped(load(scores + i * kLd + c)));
}

MT_INLINE void attend(const Task& t, Softmax& state, int64_t panel) {
  const int64_t D = t.shape.D, Dv = t.shape.value_dim(), row0 = part_begin(t.rows, t.panels, panel);
  const int64_t rows = part_begin(t.rows, t.panels, panel + 1) - row0;
  const int64_t c0 = max_of(0, t.seen[row0].begin - t.key0) / W * W;
  const int64_t c1 = min_of(t.keys, t.seen[row0 + rows - 1].end - t.key0);
  if (c1 <= c0) return;
  const Tile score = pick_tile<Operand::slabs, 0>(rows, W);
  for (int64_t c = c0; c < c1; c += W)
    score({.a = t.q + row0 * W,
           .a_slab = t.rows * W,
           .b = t.keys_t + c * D,
           .k = D,
           .out = t.scores + c - c0,
           .out_ld = kLd});
  if (t.cap) cap_scores(t.cap, t.scores, rows, div_up(c1 - c0, W) * W);
  float decay[kLanes];
  store(decay, update(t, state, row0, rows, c0, div_up(c1 - c0, W) * W));
  for (int64_t d = 0; d < Dv; d += W)
    pick_tile<Operand::scores, kLd>(rows, Dv - d)({.a = t.scores,
                                                   .b = t.values + (d * kKeys) + c0 * W,
                                                   .k = c1 - c0,
                                                   .out = t.out + d * t.rows + row0 * W,
                                                   .out_ld = W,
                                                   .decay = state.started ? decay : nullptr});
  state.started = true;
}

template <class T>
MT_INLINE void finish(const Task& t, const Softmax* state, Rows<T> out, int64_t q0, float* lse) {
  const int64_t Dv = t.shape.value_dim();
  for (int64_t p = 0; p < t.panels; ++p) {
    const int64_t row0 = part_begin(t.rows, t.panels, p), end = part_begin(t.rows, t.panels, p + 1);
    for (int64_t i = row0; i < end; ++i) {
      const float sum = state[p].sum[i - row0], top = state[p].top[i - row0];
      lse[q0 + i] = sum == 0 ? -__builtin_inff() : top * kLn2 + __builtin_logf(sum);
      if (state[p].started)
        unpack_rows<T>(t.out + i * W, t.rows, 1, Dv, sum == 0 ? 0.0f : 1.0f / sum, out, q0 + i);
      else
        for_lanes(Dv, [&](int64_t d, auto m) { store(out.row(q0 + i) + d, Vf{}, m); });
    }
  }
}

template <class T>
void forward(const AttentionForward& f, int64_t b, int64_t g, int64_t q0, int64_t q1) {
  const AttentionShape& s = f.shape;
  const int64_t D = s.D, Dv = s.value_dim(), group = s.A / s.G, rows = q1 - q0;
  const int64_t panels = div_up(rows, kTileRows), padded = slabs(Dv) * W;
  const int64_t of_q = rows * slabs(D) * W, of_out = rows * padded;
  const int64_t states = group * panels * int64_t(sizeof(Softmax) / sizeof(float));
  float* next =
      thread_scratch(group * (of_q + of_out) + kKeys * (D + padded) + kTileRows * kLd + states);
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  Softmax* state = reinterpret_cast<Softmax*>(take(states));
  float* q = take(group * of_q);
  float* out = take(group * of_out);
  float* keys_t = take(kKeys * D);
  float* values = take(kKeys * padded);
  Seen seen[kMaxRows];
  int64_t document = 0;
  for (int64_t i = 0; i < rows; ++i) seen[i] = seen_by(s, q0 + i, document);
  for (int64_t h = 0; h < group; ++h)
    pack_rows(rows_of<T>(f.q, s, b, g * group + h, D), q0, rows, D, s.scale * kLog2E, q + h * of_q,
              rows);
  for (int64_t i = 0; i < group * panels; ++i) state[i] = {splat(-__builtin_inff()), Vf{}, false};

  Task t{.shape = s,
         .rows = rows,
         .panels = panels,
         .seen = seen,
         .keys_t = keys_t,
         .values = values,
         .scores = next,
         .cap = ScoreCap(s.cap)};
  const int64_t end = seen[rows - 1].end;
  for (t.key0 = seen[0].begin / kKeys * kKeys; t.key0 < end; t.key0 += kKeys) {
    t.keys = min_of(kKeys, end - t.key0);
    pack_columns(rows_of<T>(f.k, s, b, g, D), t.key0, t.keys, D, keys_t);
    pack_rows(rows_of<T>(f.v, s, b, g, Dv), t.key0, t.keys, Dv, 1.0f, values, kKeys);
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
    with_float(f.out.data.dtype, [&]<class Out>() {
      if constexpr (!mixes_halves<T, Out>)
        finish(t, state + h * panels, rows_of<Out>(f.out, s, b, a, Dv), q0, lse);
    });
  }
}

}  // namespace

void run(const AttentionForward& f);
void run(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  if (s.B * s.Sq == 0) return;
  const int64_t group = s.A / s.G, width = group * slabs(max_of(s.D, s.value_dim())) * W;
  int64_t rows = max_of(kTileRows, min_of(kMaxRows, kMaxFloats / width));
  rows = div_up(s.Sq, div_up(s.Sq, rows));
  const int64_t blocks = div_up(s.Sq, rows), heads = s.B * s.G;
  parallel(heads * blocks, 1, [&](int64_t begin, int64_t) {
    // Under a causal mask the last rows attend to the most keys. They come first: threads then end
    // together.
    const int64_t block = blocks - 1 - begin / heads, head = begin % heads;
    const int64_t q0 = block * rows, q1 = min_of(s.Sq, q0 + rows);
    if (q0 >= q1) return;
    with_float(f.q.data.dtype, [&]<class T>() { forward<T>(f, head / s.G, head % s.G, q0, q1); });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
