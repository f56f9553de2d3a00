// Forward of kernels/attention.h. A sequence's query rows are split into panels. A task owns
// consecutive panels of all heads that share a kv head, and iterates over blocks of keys with fixed
// bounds. A row's result depends on its panel if a key that other rows of the panel attend to has a
// value that is not finite: its weight of 0 does not hide that value. Panels are the same for all
// tasks. Therefore the result does not depend on the threads or the size of a task.
#include "kernels/cpu/vector/attention_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 256;  // keys in a block
// Panels of rows that are computed together. A slab of keys or values stays in the first-level
// cache while all of them are multiplied by it.
constexpr int64_t kPanels = 8;
// Query rows of a task, per head, rounded up to full panels. Each task packs the keys and values
// that its rows attend to. Many rows share this cost, few rows leave enough tasks for many threads.
// Query heads that share a kv head share the cost, too: with them, a task that fits into the
// second-level cache is faster.
constexpr int64_t kMaxRows = 1024, kMinRows = 256;
// Floats of q, or of the sums, in a task: 1 MiB and 512 KiB.
constexpr int64_t kMaxFloatsOfHead = 1 << 18, kMaxFloatsOfGroup = 1 << 17;
constexpr int64_t kTasksPerThread = 4;

// Running maximum (base 2) and sum of a panel's rows, one row per lane.
struct Softmax {
  Vf top, sum;
  bool started;
};

// The panels of a task, which are some of those of a sequence. Rows count from the task's first.
struct Panels {
  int64_t Sq, all;     // query rows of the sequence, and the panels into which they are split
  int64_t first, end;  // the task's
  int64_t count() const { return end - first; }
  int64_t sequence_row(int64_t panel) const { return part_begin(Sq, all, first + panel); }
  int64_t row(int64_t panel) const { return sequence_row(panel) - sequence_row(0); }
};

struct Task {
  const AttentionShape& shape;
  Panels panels;
  const Seen* seen;    // keys of each row
  int64_t key0, keys;  // the current block
  const float *q, *keys_t, *values;
  float *out, *scores;
  ScoreCap cap;
};

// The q of a panel, its sums and its scores of a block are row slabs of their own: a tile then
// reads one contiguous piece of memory. Scores begin at the key c0.
MT_INLINE int64_t score_at(const Panel& panel, int64_t row, int64_t c) {
  return (c / W * panel.rows + row) * W + c % W;
}

// Turns scores into probabilities relative to the running maximum. Returns the factors for the
// earlier sums.
MT_INLINE Vf update(const Task& t, Softmax& state, const Panel& panel, float* scores) {
  const float kInfinity = __builtin_inff();
  const int64_t first = t.key0 + panel.c0, columns = div_up(panel.c1 - panel.c0, W) * W;
  // Most rows attend to all of these keys, and need no branches.
  const auto sees_all = [&](const Seen& seen) {
    return seen.begin <= first && seen.end >= first + columns;
  };
  float* const end = scores + panel.rows * columns;
  Vf line[kLanes];
  for (int i = 0; i < kLanes; ++i) line[i] = splat(-kInfinity);
  for (int64_t i = 0; i < panel.rows; ++i) {
    const Seen seen = t.seen[panel.row0 + i];
    const auto score = [&](int64_t c) { return load(scores + score_at(panel, i, c)); };
    Vf top = splat(-kInfinity);
    if (sees_all(seen)) {
      for (const float* x = scores + i * W; x < end; x += panel.rows * W)
        for (int v = 0; v < kTileVectors; ++v) top = vmax(load(x + v * kLanes), top);
    } else {
      for_seen(
          columns, seen.begin - first, seen.end - first,
          [&](int64_t c) { top = vmax(score(c), top); },
          [&](int64_t c, Vi in) { top = vmax(in ? score(c) : top, top); }, [](int64_t) {});
    }
    line[i] = top;
  }
  transpose(line);
  Vf top = state.top;
  for (int i = 0; i < kLanes; ++i) top = vmax(line[i], top);
  float tops[kLanes];
  store(tops, top);

  for (int i = 0; i < kLanes; ++i) line[i] = Vf{};
  for (int64_t i = 0; i < panel.rows; ++i) {
    const Seen seen = t.seen[panel.row0 + i];
    const auto score = [&](int64_t c) { return scores + score_at(panel, i, c); };
    const Vf shift = splat(tops[i]);
    Vf sum = Vf{};
    const auto plain = [&](float* x) {
      const Vf p = vexp2(load(x) - shift);
      store(x, p);
      sum += p;
    };
    if (sees_all(seen)) {
      for (float* x = scores + i * W; x < end; x += panel.rows * W)
        for (int v = 0; v < kTileVectors; ++v) plain(x + v * kLanes);
    } else {
      for_seen(
          columns, seen.begin - first, seen.end - first, [&](int64_t c) { plain(score(c)); },
          [&](int64_t c, Vi in) {
            const Vf p = in ? vexp2(load(score(c)) - shift) : Vf{};
            store(score(c), p);
            sum += p;
          },
          [&](int64_t c) { store(score(c), Vf{}); });
    }
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

MT_INLINE void cap_scores(const ScoreCap& cap, const Panel& panel, float* scores) {
  const int64_t floats = panel.rows * div_up(panel.c1 - panel.c0, W) * W;
  for (int64_t i = 0; i < floats; i += kLanes) store(scores + i, cap.capped(load(scores + i)));
}

// The panels [p0, p1) attend to the block of keys.
MT_INLINE void attend(const Task& t, Softmax* state, int64_t p0, int64_t p1) {
  const int64_t D = t.shape.D, Dv = t.shape.value_dim(), count = p1 - p0;
  Panel panels[kPanels];
  float decay[kPanels][kLanes];
  const auto scores = [&](int64_t i) { return t.scores + i * kTileRows * kKeys; };
  for (int64_t i = 0; i < count; ++i)
    panels[i] = panel_of(t.seen, t.panels.row(p0 + i), t.panels.row(p0 + i + 1), t.key0, t.keys);
  for (int64_t c = panels[0].c0; c < panels[count - 1].c1; c += W)
    for (int64_t i = 0; i < count; ++i) {
      const Panel& panel = panels[i];
      if (!panel.sees(c)) continue;
      pick_tile<Operand::slabs>(panel.rows, W)({.a = t.q + panel.row0 * slabs(D) * W,
                                                .a_slab = panel.rows * W,
                                                .b = t.keys_t + c * D,
                                                .k = D,
                                                .out = scores(i) + score_at(panel, 0, c - panel.c0),
                                                .out_ld = W});
    }
  for (int64_t i = 0; i < count; ++i) {
    if (!panels[i].any()) continue;
    if (t.cap) cap_scores(t.cap, panels[i], scores(i));
    store(decay[i], update(t, state[p0 + i], panels[i], scores(i)));
  }
  for (int64_t d = 0; d < Dv; d += W)
    for (int64_t i = 0; i < count; ++i) {
      const Panel& panel = panels[i];
      if (!panel.any()) continue;
      pick_tile<Operand::slabs>(panel.rows,
                                Dv - d)({.a = scores(i),
                                         .a_slab = panel.rows * W,
                                         .b = t.values + d * kKeys + panel.c0 * W,
                                         .k = panel.c1 - panel.c0,
                                         .out = t.out + panel.row0 * slabs(Dv) * W + d * panel.rows,
                                         .out_ld = W,
                                         .decay = state[p0 + i].started ? decay[i] : nullptr});
    }
  for (int64_t i = 0; i < count; ++i)
    if (panels[i].any()) state[p0 + i].started = true;
}

template <class T>
MT_INLINE void finish(const Task& t, const Softmax* state, Rows<T> out, int64_t q0, float* lse) {
  const int64_t Dv = t.shape.value_dim();
  for (int64_t p = 0; p < t.panels.count(); ++p) {
    const int64_t row0 = t.panels.row(p), end = t.panels.row(p + 1);
    for (int64_t i = row0; i < end; ++i) {
      const float sum = state[p].sum[i - row0], top = state[p].top[i - row0];
      lse[q0 + i] = sum == 0 ? -__builtin_inff() : top * kLn2 + __builtin_logf(sum);
      if (state[p].started)
        unpack_rows<T>(t.out + row0 * slabs(Dv) * W + (i - row0) * W, end - row0, 1, Dv,
                       sum == 0 ? 0.0f : 1.0f / sum, out, q0 + i);
      else
        for_lanes(Dv, [&](int64_t d, auto m) { store(out.row(q0 + i) + d, Vf{}, m); });
    }
  }
}

template <class T>
void forward(const AttentionForward& f, int64_t b, int64_t g, const Panels& own) {
  const AttentionShape& s = f.shape;
  const int64_t panels = own.count(), q0 = own.sequence_row(0), rows = own.row(panels);
  const int64_t D = s.D, Dv = s.value_dim(), group = s.A / s.G, padded = slabs(Dv) * W;
  const int64_t of_q = rows * slabs(D) * W, of_out = rows * padded;
  const int64_t states = group * panels * int64_t(sizeof(Softmax) / sizeof(float));
  float* next =
      thread_scratch(group * (of_q + of_out) + kKeys * (D + padded + kPanels * kTileRows) + states);
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  Softmax* state = reinterpret_cast<Softmax*>(take(states));
  float* q = take(group * of_q);
  float* out = take(group * of_out);
  float* keys_t = take(kKeys * D);
  float* values = take(kKeys * padded);
  Seen seen[kMaxRows + kTileRows];
  int64_t document = 0;
  for (int64_t i = 0; i < rows; ++i) seen[i] = seen_by(s, q0 + i, document);
  for (int64_t h = 0; h < group; ++h)
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t row0 = own.row(p), end = own.row(p + 1);
      pack_rows(rows_of<T>(f.q, s, b, g * group + h, D), q0 + row0, end - row0, D, s.scale * kLog2E,
                q + h * of_q + row0 * slabs(D) * W, end - row0);
    }
  for (int64_t i = 0; i < group * panels; ++i) state[i] = {splat(-__builtin_inff()), Vf{}, false};

  Task t{.shape = s,
         .panels = own,
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
      for (int64_t p = 0; p < panels; p += kPanels)
        attend(t, state + h * panels, p, min_of(p + kPanels, panels));
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

// Returns how many panels a task has, of `all` panels of a sequence. The result of a row does not
// depend on it.
MT_INLINE int64_t panels_of_task(const AttentionShape& s, int64_t all, int64_t threads) {
  const int64_t width = s.A / s.G * slabs(max_of(s.D, s.value_dim())) * W;
  const int64_t floats = s.A == s.G ? kMaxFloatsOfHead : kMaxFloatsOfGroup;
  const int64_t tasks = threads == 1 ? 1 : kTasksPerThread * threads;
  for (int64_t most = kMaxRows;; most /= 2) {
    const int64_t panels = div_up(max_of(1, min_of(most, floats / width)), kTileRows);
    const int64_t blocks = div_up(all, panels);
    if (s.B * s.G * blocks >= tasks || most == kMinRows) return div_up(all, blocks);
  }
}

}  // namespace

void run(const AttentionForward& f);
void run(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  if (s.B * s.Sq == 0) return;
  const int64_t all = div_up(s.Sq, kTileRows), panels = panels_of_task(s, all, current_threads());
  const int64_t blocks = div_up(all, panels), heads = s.B * s.G;
  parallel(heads * blocks, 1, [&](int64_t begin, int64_t) {
    // Under a causal mask the last rows attend to the most keys. They come first: threads then end
    // together.
    const int64_t block = blocks - 1 - begin / heads, head = begin % heads;
    const Panels own{s.Sq, all, block * panels, min_of(all, (block + 1) * panels)};
    with_float(f.q.data.dtype, [&]<class T>() { forward<T>(f, head / s.G, head % s.G, own); });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
