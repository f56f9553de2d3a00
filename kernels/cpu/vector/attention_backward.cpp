// Backward of kernels/attention.h, in the tasks of attention_tasks.h. Every sum has the order of
// the sequence.
#include "kernels/cpu/vector/attention_tasks.h"
#include "kernels/cpu/vector/attention_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 256, kRows = 128;  // keys or query rows in a block
// Rows of a slab: a few more than a block has, therefore slabs use different sets of the cache.
constexpr int64_t kLines = kRows + 8;

struct Task {
  const AttentionShape& shape;
  const Share& share;
  int64_t D, Dv, group;
  // The block of keys: column slabs, and for dq also row slabs of kKeys rows.
  int64_t key0, keys;
  float *keys_t, *values_t, *key_rows, *dkeys_t, *dvalues_t;
  // The block of queries: row slabs of kLines rows. The probabilities are those of one slab.
  int64_t row0, rows;
  float *q, *dout, *probabilities, *dscores;
  const float *lse, *delta;  // starting at the block's first row; lse in base 2
  float* dq;                 // row slabs of the head, for the share's rows
  const Seen* seen;
  ScoreCap cap;
};

MT_INLINE void clear(float* p, int64_t floats) {
  for (int64_t i = 0; i < floats; i += kLanes)
    store(p + i, Vf{});  // all callers clear full vectors
}

// Turns the scores and dout V^T of the rows [begin, end) and of the slab of keys that begins at c
// into probabilities and the gradients of the scores. `p` and `ds` are the slab's.
template <bool CAPPED>
MT_INLINE void row_gradients(const Task& t, int64_t begin, int64_t end, int64_t c, float* p,
                             float* ds) {
  const auto score = [&](const float* at) {
    if constexpr (CAPPED) return t.cap.capped(load(at));
    return load(at);
  };
  const auto gradient = [&](const float* at, Vf delta, Vf s, Vf x) {
    const Vf d = x * (load(at) - delta);
    if constexpr (CAPPED) return d * t.cap.slope(s);
    return d;
  };
  const auto some = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Vf lse = splat(t.lse[i]), delta = splat(t.delta[i]);
      float *const pi = p + i * W, *const di = ds + i * W;
      const auto masked = [&](int64_t j, auto in) {
        const Vf s = score(pi + j), x = in(vexp2(s - lse));
        store(pi + j, x);
        store(di + j, in(gradient(di + j, delta, s, x)));
      };
      for_seen(
          W, t.seen[i].begin - t.key0 - c, t.seen[i].end - t.key0 - c,
          [&](int64_t j) { masked(j, [](Vf x) { return x; }); },
          [&](int64_t j, Vi in) { masked(j, [in](Vf x) { return in ? x : Vf{}; }); },
          [&](int64_t j) {
            store(pi + j, Vf{});
            store(di + j, Vf{});
          });
    }
  };
  // The rows [first, last) attend to all keys of the slab. Most rows do, and need no branches.
  const auto sees_all = [&](int64_t i) {
    return t.seen[i].begin <= t.key0 + c && t.seen[i].end >= t.key0 + c + W;
  };
  int64_t first = begin;
  while (first < end && !sees_all(first)) ++first;
  int64_t last = end;
  while (last > first && !sees_all(last - 1)) --last;
  some(begin, first);
  for (int64_t i = first; i < last; ++i) {
    const Vf lse = splat(t.lse[i]), delta = splat(t.delta[i]);
    float *const pi = p + i * W, *const di = ds + i * W;
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) {
      const Vf s = score(pi + v * kLanes), x = vexp2(s - lse);
      store(pi + v * kLanes, x);
      store(di + v * kLanes, gradient(di + v * kLanes, delta, s, x));
    }
  }
  some(last, end);
}

// Computes the probabilities and the gradients of the scores of some panels of rows and the slab of
// keys that begins at c.
MT_INLINE void score_gradients(const Task& t, const Panel* panels, int64_t count, int64_t c) {
  float *const p = t.probabilities, *const ds = t.dscores + c * kLines;
  const auto multiply = [&](const float* rows, const float* columns, int64_t k, float* out) {
    for (int64_t i = 0; i < count; ++i)
      pick_tile<Operand::slabs>(panels[i].rows, W)({.a = rows + panels[i].row0 * W,
                                                    .a_slab = kLines * W,
                                                    .b = columns + c * k,
                                                    .k = k,
                                                    .out = out + panels[i].row0 * W,
                                                    .out_ld = W});
  };
  multiply(t.q, t.keys_t, t.D, p);
  multiply(t.dout, t.values_t, t.Dv, ds);
  const int64_t end = panels[count - 1].row0 + panels[count - 1].rows;
  t.cap ? row_gradients<true>(t, panels[0].row0, end, c, p, ds)
        : row_gradients<false>(t, panels[0].row0, end, c, p, ds);
}

// Adds the share that the rows [begin, end) of the block have in dv and dk of the slab of keys that
// begins at c: the transposes, sums over rows of q or dout, weighted by scores.
MT_INLINE void add_dkv(const Task& t, int64_t begin, int64_t end, int64_t c) {
  while (begin < end && t.seen[begin].end <= t.key0 + c) ++begin;
  while (begin < end && t.seen[end - 1].begin >= t.key0 + c + W) --end;
  if (begin == end) return;
  const auto add = [&](const float* lines, int64_t D, const float* scores, float* sums) {
    for (int64_t d = 0; d < D; d += W) {
      const int64_t columns = min_of(W, D - d), parts = div_up(columns, kTileRows);
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t first = part_begin(columns, parts, i);
        pick_tile<Operand::slab_t>(part_begin(columns, parts, i + 1) - first,
                                   W)({.a = lines + d * kLines + begin * W + first,
                                       .b = scores + begin * W,
                                       .k = end - begin,
                                       .out = sums + c * D + (d + first) * W,
                                       .out_ld = W,
                                       .add = true});
      }
    }
  };
  add(t.dout, t.Dv, t.probabilities, t.dvalues_t);
  add(t.q, t.D, t.dscores + c * kLines, t.dkeys_t);
}

// Adds the block's share of dq.
MT_INLINE void add_dq(const Task& t, const Panel* panels, int64_t count) {
  const int64_t rows = t.share.row1 - t.share.row0, first = t.row0 - t.share.row0;
  for (int64_t d = 0; d < t.D; d += W)
    for (int64_t i = 0; i < count; ++i) {
      const Panel& panel = panels[i];
      if (!panel.any()) continue;
      pick_tile<Operand::slabs>(panel.rows,
                                t.D - d)({.a = t.dscores + panel.c0 * kLines + panel.row0 * W,
                                          .a_slab = kLines * W,
                                          .b = t.key_rows + d * kKeys + panel.c0 * W,
                                          .k = panel.c1 - panel.c0,
                                          .out = t.dq + d * rows + (first + panel.row0) * W,
                                          .out_ld = W,
                                          .add = true});
    }
}

// Writes the sums of out * dout of `rows` rows to `delta`. Four rows together: the sum of one row
// would wait for each of its additions.
template <class T>
MT_INLINE void dot_rows(Rows<const T> a, Rows<const T> b, int64_t first, int64_t rows, int64_t D,
                        float* delta) {
  const auto some = [&]<int ROWS>(int64_t row) {
    Vf sum[ROWS]{};
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i) {
      prefetch_row(a.row(row + i + kPackAhead), D);
      prefetch_row(b.row(row + i + kPackAhead), D);
    }
    for_lanes(D, [&](int64_t d, auto m) {
#pragma GCC unroll 4
      for (int i = 0; i < ROWS; ++i)
        sum[i] += load(a.row(row + i) + d, m) * load(b.row(row + i) + d, m);
    });
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i) delta[row - first + i] = sum_lanes(sum[i]);
  };
  constexpr int kTogether = 4;
  int64_t row = first;
  for (; row + kTogether <= first + rows; row += kTogether)
    some.template operator()<kTogether>(row);
  for (; row < first + rows; ++row) some.template operator()<1>(row);
}

template <class T>
MT_INLINE void block(Task& t, const AttentionBackward& args, int64_t b, int64_t a) {
  pack_rows(rows_of<T>(args.q, t.shape, b, a, t.D), t.row0, t.rows, t.D, t.shape.scale * kLog2E,
            t.q, kLines);
  pack_rows(rows_of<T>(args.dout, t.shape, b, a, t.Dv), t.row0, t.rows, t.Dv, 1.0f, t.dout, kLines);
  Panel panels[div_up(kRows, kTileRows)];
  const int64_t count = div_up(t.rows, kTileRows);
  for (int64_t i = 0; i < count; ++i)
    panels[i] = panel_of(t.seen, part_begin(t.rows, count, i), part_begin(t.rows, count, i + 1),
                         t.key0, t.keys);
  // The panels that attend to a slab are consecutive, and move down with the slab.
  for (int64_t c = 0, p0 = 0; c < t.keys; c += W) {
    while (p0 < count && panels[p0].c1 <= c) ++p0;
    int64_t p1 = p0;
    while (p1 < count && panels[p1].c0 <= c) ++p1;
    if (p0 == p1) continue;
    score_gradients(t, panels + p0, p1 - p0, c);
    if (t.share.dkv) add_dkv(t, panels[p0].row0, panels[p1 - 1].row0 + panels[p1 - 1].rows, c);
  }
  if (t.share.dq) add_dq(t, panels, count);
}

template <class T>
void backward(const AttentionBackward& args, int64_t b, int64_t g, const Share& share) {
  const AttentionShape& s = args.shape;
  const int64_t D = s.D, padded = slabs(D) * W, group = s.A / s.G, rows = share.row1 - share.row0;
  const int64_t Dv = s.value_dim(), padded_v = slabs(Dv) * W;
  const int64_t head = share.dq ? rows * padded : 0, lines = div_up(rows, 16) * 16;
  const int64_t of_seen = lines * int64_t(sizeof(Seen) / sizeof(float));
  float* next =
      thread_scratch(group * (head + 2 * lines) + of_seen + kKeys * (2 * (D + Dv) + padded) +
                     kLines * (padded + padded_v + W + kKeys));
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  Seen* seen = reinterpret_cast<Seen*>(take(of_seen));
  float *dq = take(group * head), *lse = take(group * lines), *delta = take(group * lines);
  Task t{.shape = s, .share = share, .D = D, .Dv = Dv, .group = group, .cap = ScoreCap(s.cap)};
  t.keys_t = take(kKeys * D);
  t.values_t = take(kKeys * Dv);
  t.key_rows = take(kKeys * padded);
  t.dkeys_t = take(kKeys * D);
  t.dvalues_t = take(kKeys * Dv);
  t.q = take(kLines * padded);
  t.dout = take(kLines * padded_v);
  t.probabilities = take(kLines * W);
  t.dscores = take(kLines * kKeys);

  int64_t document = 0;
  for (int64_t i = 0; i < rows; ++i) seen[i] = seen_by(s, share.row0 + i, document);
  const RowRange used = rows_that_see(share, seen, kRows);
  for (int64_t h = 0; h < group; ++h) {
    const int64_t a = g * group + h;
    const auto out = rows_of<T>(args.out, s, b, a, Dv), dout = rows_of<T>(args.dout, s, b, a, Dv);
    const float* known = data_of<float>(args.lse) + lse_at(s, b, a);
    for (int64_t i = used.begin; i < used.end; ++i)
      lse[h * lines + i] = known[share.row0 + i] * kLog2E;
    dot_rows(out, dout, share.row0 + used.begin, used.end - used.begin, Dv,
             delta + h * lines + used.begin);
  }
  if (share.dq) clear(dq, group * head);
  for (t.key0 = share.key0; t.key0 < share.key1; t.key0 += kKeys) {
    t.keys = min_of(kKeys, share.key1 - t.key0);
    if (!share.dkv && !any_sees(seen, rows, t.key0, t.key0 + t.keys)) continue;
    pack_columns(rows_of<T>(args.k, s, b, g, D), t.key0, t.keys, D, t.keys_t);
    pack_columns(rows_of<T>(args.v, s, b, g, Dv), t.key0, t.keys, Dv, t.values_t);
    pack_rows(rows_of<T>(args.k, s, b, g, D), t.key0, t.keys, D, 1.0f, t.key_rows, kKeys);
    if (share.dkv) {
      clear(t.dkeys_t, kKeys * D);
      clear(t.dvalues_t, kKeys * Dv);
    }
    for (int64_t h = 0; h < group; ++h)
      for (t.row0 = share.row0; t.row0 < share.row1; t.row0 += kRows) {
        const int64_t at = t.row0 - share.row0;
        t.rows = min_of(kRows, share.row1 - t.row0);
        t.seen = seen + at;
        if (t.seen[0].begin >= t.key0 + t.keys || t.seen[t.rows - 1].end <= t.key0) continue;
        t.lse = lse + h * lines + at;
        t.delta = delta + h * lines + at;
        t.dq = dq + h * head;
        block<T>(t, args, b, g * group + h);
      }
    if (!share.dkv) continue;
    with_float(args.dk.data.dtype, [&]<class Out>() {
      unpack_columns(t.dkeys_t, t.keys, D, kLn2, rows_of<Out>(args.dk, s, b, g, D), t.key0,
                     args.add_dkv);
      unpack_columns(t.dvalues_t, t.keys, Dv, 1.0f, rows_of<Out>(args.dv, s, b, g, Dv), t.key0,
                     args.add_dkv);
    });
  }
  for (int64_t h = 0; share.dq && h < group; ++h)
    with_float(args.dq.data.dtype, [&]<class Out>() {
      unpack_rows(dq + h * head, rows, rows, D, s.scale,
                  rows_of<Out>(args.dq, s, b, g * group + h, D), share.row0, args.add_dq);
    });
}

}  // namespace

void run(const AttentionBackward& args);
void run(const AttentionBackward& args) {
  with_float(args.q.data.dtype, [&]<class T>() {
    for_backward_tasks(args.shape, kRows, kKeys, [&](int64_t head, const Share& share) {
      backward<T>(args, head / args.shape.G, head % args.shape.G, share);
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
