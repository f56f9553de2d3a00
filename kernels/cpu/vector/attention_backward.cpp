// Backward of kernels/attention.h, in the tasks of attention_tasks.h. Every sum has the order of
// the sequence.
#include "kernels/cpu/vector/attention_tasks.h"
#include "kernels/cpu/vector/attention_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 128, kRows = 128;  // keys or query rows in a block
constexpr int64_t kLd = kKeys + 16;

struct Task {
  const AttentionShape& shape;
  const Share& share;
  int64_t D, Dv, group;
  // The block of keys.
  int64_t key0, keys;
  float *keys_t, *values_t, *key_rows, *dkeys, *dvalues;
  // The block of queries.
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

// Turns the scores and dout V^T of row i, in the columns [c0, c0 + columns), into probabilities and
// the gradients of the scores.
template <bool CAPPED>
MT_INLINE void row_gradients(const Task& t, int64_t i, int64_t c0, int64_t columns) {
  float *p = t.probabilities + i * kLd + c0, *ds = t.dscores + i * kLd + c0;
  const Vf lse = splat(t.lse[i]), delta = splat(t.delta[i]);
  const auto score = [&](int64_t c) {
    if constexpr (CAPPED) return t.cap.capped(load(p + c));
    return load(p + c);
  };
  const auto gradient = [&](int64_t c, Vf s, Vf x) {
    const Vf d = x * (load(ds + c) - delta);
    if constexpr (CAPPED) return d * t.cap.slope(s);
    return d;
  };
  for_seen(
      columns, t.seen[i].begin - t.key0 - c0, t.seen[i].end - t.key0 - c0,
      [&](int64_t c) {
        const Vf s = score(c), x = vexp2(s - lse);
        store(p + c, x);
        store(ds + c, gradient(c, s, x));
      },
      [&](int64_t c, Vi in) {
        const Vf s = score(c), x = in ? vexp2(s - lse) : Vf{};
        store(p + c, x);
        store(ds + c, in ? gradient(c, s, x) : Vf{});
      },
      [&](int64_t c) {
        store(p + c, Vf{});
        store(ds + c, Vf{});
      });
}

// Computes the probabilities and the gradients of the scores of one panel of rows, then its share
// of dq.
MT_INLINE void rows_panel(const Task& t, int64_t i0, int64_t rows) {
  const int64_t width = slabs(t.keys) * W;
  // A panel may attend to no key of the block, if its document or window begins beyond the block:
  // then c0 is the block's end, and c1 = c0.
  const int64_t c0 = min_of(width, max_of(0, t.seen[i0].begin - t.key0) / W * W);
  const int64_t c1 = max_of(c0, min_of(t.keys, t.seen[i0 + rows - 1].end - t.key0));
  const int64_t columns = div_up(c1 - c0, W) * W;
  const Tile tile = pick_tile<Operand::slabs, 0>(rows, W);
  for (int64_t c = c0; c < c1; c += W) {
    tile({.a = t.q + i0 * W,
          .a_slab = kRows * W,
          .b = t.keys_t + c * t.D,
          .k = t.D,
          .out = t.probabilities + i0 * kLd + c,
          .out_ld = kLd});
    tile({.a = t.dout + i0 * W,
          .a_slab = kRows * W,
          .b = t.values_t + c * t.Dv,
          .k = t.Dv,
          .out = t.dscores + i0 * kLd + c,
          .out_ld = kLd});
  }
  for (int64_t i = i0; i < i0 + rows; ++i) {
    float *p = t.probabilities + i * kLd, *ds = t.dscores + i * kLd;
    // dk and dv read full rows.
    clear(p, c0);
    clear(ds, c0);
    clear(p + c0 + columns, width - c0 - columns);
    clear(ds + c0 + columns, width - c0 - columns);
    t.cap ? row_gradients<true>(t, i, c0, columns) : row_gradients<false>(t, i, c0, columns);
  }
  if (!t.share.dq || c1 == c0) return;
  for (int64_t d = 0; d < t.D; d += W)
    pick_tile<Operand::scores, kLd>(rows, t.D - d)(
        {.a = t.dscores + i0 * kLd + c0,
         .b = t.key_rows + d * kKeys + c0 * W,
         .k = c1 - c0,
         .out = t.dq + d * (t.share.row1 - t.share.row0) + (t.row0 - t.share.row0 + i0) * W,
         .out_ld = W,
         .add = true});
}

// Adds the block's share of dv and dk of one panel of keys.
MT_INLINE void keys_panel(const Task& t, int64_t j0, int64_t keys) {
  int64_t begin = 0, end = t.rows;
  while (begin < end && t.seen[begin].end <= t.key0 + j0) ++begin;
  while (begin < end && t.seen[end - 1].begin >= t.key0 + j0 + keys) --end;
  if (begin == end) return;
  // The sums of one slab of columns: those of `lines`, weighted by scores.
  const auto add_slab = [&](int64_t d, int64_t D, const float* scores, const float* lines,
                            float* sums) {
    pick_tile<Operand::scores_t, kLd>(keys, D - d)({.a = scores + begin * kLd + j0,
                                                    .b = lines + d * kRows + begin * W,
                                                    .k = end - begin,
                                                    .out = sums + d * kKeys + j0 * W,
                                                    .out_ld = W,
                                                    .add = true});
  };
  for (int64_t d = 0; d < max_of(t.D, t.Dv); d += W) {
    if (d < t.Dv) add_slab(d, t.Dv, t.probabilities, t.dout, t.dvalues);
    if (d < t.D) add_slab(d, t.D, t.dscores, t.q, t.dkeys);
  }
}

template <class T>
MT_INLINE float dot(const T* a, const T* b, int64_t n) {
  Vf sum = Vf{};
  for_lanes(n, [&](int64_t i, auto m) { sum += load(a + i, m) * load(b + i, m); });
  return sum_lanes(sum);
}

template <class T>
MT_INLINE void block(Task& t, const AttentionBackward& args, int64_t b, int64_t a) {
  pack_rows(rows_of<T>(args.q, t.shape, b, a, t.D), t.row0, t.rows, t.D, t.shape.scale * kLog2E,
            t.q, kRows);
  pack_rows(rows_of<T>(args.dout, t.shape, b, a, t.Dv), t.row0, t.rows, t.Dv, 1.0f, t.dout, kRows);
  const int64_t row_panels = div_up(t.rows, kTileRows), key_panels = div_up(t.keys, kTileRows);
  for (int64_t p = 0; p < row_panels; ++p) {
    const int64_t i0 = part_begin(t.rows, row_panels, p);
    rows_panel(t, i0, part_begin(t.rows, row_panels, p + 1) - i0);
  }
  for (int64_t p = 0; t.share.dkv && p < key_panels; ++p) {
    const int64_t j0 = part_begin(t.keys, key_panels, p);
    keys_panel(t, j0, part_begin(t.keys, key_panels, p + 1) - j0);
  }
}

template <class T>
void backward(const AttentionBackward& args, int64_t b, int64_t g, const Share& share) {
  const AttentionShape& s = args.shape;
  const int64_t D = s.D, padded = slabs(D) * W, group = s.A / s.G, rows = share.row1 - share.row0;
  const int64_t Dv = s.value_dim(), padded_v = slabs(Dv) * W;
  const int64_t head = share.dq ? rows * padded : 0, lines = div_up(rows, 16) * 16;
  const int64_t of_seen = lines * int64_t(sizeof(Seen) / sizeof(float));
  float* next = thread_scratch(group * (head + 2 * lines) + of_seen +
                               kKeys * (D + Dv + 2 * padded + padded_v) +
                               kRows * (padded + padded_v + 2 * kLd));
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  Seen* seen = reinterpret_cast<Seen*>(take(of_seen));
  float *dq = take(group * head), *lse = take(group * lines), *delta = take(group * lines);
  Task t{.shape = s, .share = share, .D = D, .Dv = Dv, .group = group, .cap = ScoreCap(s.cap)};
  t.keys_t = take(kKeys * D);
  t.values_t = take(kKeys * Dv);
  t.key_rows = take(kKeys * padded);
  t.dkeys = take(kKeys * padded);
  t.dvalues = take(kKeys * padded_v);
  t.q = take(kRows * padded);
  t.dout = take(kRows * padded_v);
  t.probabilities = take(kRows * kLd);
  t.dscores = take(kRows * kLd);

  int64_t document = 0;
  for (int64_t i = 0; i < rows; ++i) seen[i] = seen_by(s, share.row0 + i, document);
  const RowRange used = rows_that_see(share, seen, kRows);
  for (int64_t h = 0; h < group; ++h) {
    const int64_t a = g * group + h;
    const auto out = rows_of<T>(args.out, s, b, a, Dv), dout = rows_of<T>(args.dout, s, b, a, Dv);
    const float* known = data_of<float>(args.lse) + lse_at(s, b, a);
    for (int64_t i = used.begin; i < used.end; ++i) {
      const int64_t row = share.row0 + i;
      lse[h * lines + i] = known[row] * kLog2E;
      delta[h * lines + i] = dot(out.row(row), dout.row(row), Dv);
    }
  }
  if (share.dq) clear(dq, group * head);
  for (t.key0 = share.key0; t.key0 < share.key1; t.key0 += kKeys) {
    t.keys = min_of(kKeys, share.key1 - t.key0);
    if (!share.dkv && !any_sees(seen, rows, t.key0, t.key0 + t.keys)) continue;
    pack_columns(rows_of<T>(args.k, s, b, g, D), t.key0, t.keys, D, t.keys_t);
    pack_columns(rows_of<T>(args.v, s, b, g, Dv), t.key0, t.keys, Dv, t.values_t);
    pack_rows(rows_of<T>(args.k, s, b, g, D), t.key0, t.keys, D, 1.0f, t.key_rows, kKeys);
    if (share.dkv) {
      clear(t.dkeys, kKeys * padded);
      clear(t.dvalues, kKeys * padded_v);
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
      unpack_rows(t.dkeys, kKeys, t.keys, D, kLn2, rows_of<Out>(args.dk, s, b, g, D), t.key0,
                  args.add_dkv);
      unpack_rows(t.dvalues, kKeys, t.keys, Dv, 1.0f, rows_of<Out>(args.dv, s, b, g, Dv), t.key0,
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
