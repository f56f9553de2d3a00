// kernels/attention_decode.h: a task owns up to kHeads query heads that share a kv head of one
// query row. Sums have the order of attention_forward.cpp, whose blocks of keys begin at multiples
// of kKeys positions. A score sums over the head in order, lane l of a block's sum of probabilities
// has the keys l, l + kLanes, ..., and values are summed key by key. Therefore the result does not
// depend on the threads, or on how keys were added to the cache.
#include "kernels/attention_decode.h"

#include "kernels/cpu/vector/attention_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kKeys = 256;  // as in attention_forward.cpp
constexpr int64_t kHeads = 8;

// One query head: its scaled query, the scores of a block, the sum of values so far, and the
// softmax's running maximum (base 2) and sum.
struct Head {
  float *q, *scores, *out;
  float top, sum;
};

// Writes the scores of the block's keys [0, keys), and of the keys that fill the last vector, whose
// scores are not read.
template <class T>
MT_INLINE void score_keys(const Head* head, int64_t heads, const T* k, int64_t stride, int64_t c0,
                          int64_t keys, int64_t D) {
  for (int64_t c = c0; c < keys; c += kLanes)
    for (int64_t d = 0; d < D; d += kLanes) {
      const int64_t lanes = min_of(kLanes, D - d);
      Vf line[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const T* row = k + min_of(c + i, keys - 1) * stride + d;
        line[i] = lanes == kLanes ? load(row) : load(row, Part{int(lanes)});
      }
      transpose(line);
      for (int64_t h = 0; h < heads; ++h) {
        const float* q = head[h].q + d;
        Vf score = d == 0 ? Vf{} : load(head[h].scores + c);
        if (lanes == kLanes) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) score += splat(q[i]) * line[i];
        } else {
          for (int i = 0; i < lanes; ++i) score += splat(q[i]) * line[i];
        }
        store(head[h].scores + c, score);
      }
    }
}

MT_INLINE void cap_scores(const ScoreCap& cap, const Head* head, int64_t heads, int64_t c0,
                          int64_t keys) {
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t c = c0; c < keys; c += kLanes)
      store(head[h].scores + c, cap.capped(load(head[h].scores + c)));
}

// Turns the scores of the keys [begin, keys) into probabilities relative to the running maximum,
// and those of other keys into 0. Returns the factor for the earlier sums.
MT_INLINE float update(Head& h, int64_t c0, int64_t begin, int64_t keys) {
  Vf line = splat(-__builtin_inff());
  for_seen(
      keys - c0, begin - c0, keys - c0,
      [&](int64_t c) { line = vmax(load(h.scores + c0 + c), line); },
      [&](int64_t c, Vi in) { line = vmax(in ? load(h.scores + c0 + c) : line, line); },
      [](int64_t) {});
  const float block_top = max_lanes(line), top = block_top > h.top ? block_top : h.top;
  Vf sum = Vf{};
  for_seen(
      keys - c0, begin - c0, keys - c0,
      [&](int64_t c) {
        const Vf p = vexp2(load(h.scores + c0 + c) - splat(top));
        store(h.scores + c0 + c, p);
        sum += p;
      },
      [&](int64_t c, Vi in) {
        const Vf p = in ? vexp2(load(h.scores + c0 + c) - splat(top)) : Vf{};
        store(h.scores + c0 + c, p);
        sum += p;
      },
      [&](int64_t c) { store(h.scores + c0 + c, Vf{}); });
  float total = sum[0];
  for (int i = 1; i < kLanes; ++i) total += sum[i];
  const float decay = h.top == top ? 1.0f : vexp2(splat(h.top - top))[0];
  h.sum = h.sum * decay + total;
  h.top = top;
  return decay;
}

// out = decay * out + the keys' values, weighted by the scores, for HEADS heads that read each
// value once. Sums of a few vectors stay in registers.
template <int HEADS, class T>
MT_INLINE void add_values(const Head* head, const float* decay, const T* v, int64_t stride,
                          int64_t begin, int64_t keys, int64_t D) {
  constexpr int kVectors = HEADS == 1 ? 4 : 2;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= D; d += kVectors * kLanes) {
    Vf sum[HEADS][kVectors]{};
    for (int64_t c = begin; c < keys; ++c) {
      Vf value[kVectors];
      for (int i = 0; i < kVectors; ++i) value[i] = load(v + c * stride + d + i * kLanes);
      for (int h = 0; h < HEADS; ++h)
        for (int i = 0; i < kVectors; ++i) sum[h][i] += splat(head[h].scores[c]) * value[i];
    }
    for (int h = 0; h < HEADS; ++h)
      for (int i = 0; i < kVectors; ++i) {
        float* out = head[h].out + d + i * kLanes;
        store(out, load(out) * splat(decay[h]) + sum[h][i]);
      }
  }
  for (int h = 0; h < HEADS; ++h)
    for_lanes(D - d, [&](int64_t e, auto m) {
      Vf sum{};
      for (int64_t c = begin; c < keys; ++c)
        sum += splat(head[h].scores[c]) * load(v + c * stride + d + e, m);
      float* out = head[h].out + d + e;
      store(out, load(out, m) * splat(decay[h]) + sum, m);
    });
}

// Computes the query heads [head0, head0 + group) of row t, which share the kv head g.
template <class T>
void decode(const AttentionDecode& a, int64_t t, int64_t g, int64_t head0, int64_t group) {
  const int64_t D = a.D, Dv = a.value_dim(), start = data_of<int32_t>(a.start_T)[t];
  const int64_t end = data_of<int32_t>(a.end_T)[t] - start;
  const int64_t first = a.window > 0 ? max_of(0, end - a.window) : 0;
  const int64_t ks = a.k.token_stride, vs = a.v.token_stride;
  const T* k = data_of<T>(a.k.data) + start * ks + g * D;
  const T* v = data_of<T>(a.v.data) + start * vs + g * Dv;

  const int64_t padded = div_up(D, kLanes) * kLanes, padded_v = div_up(Dv, kLanes) * kLanes;
  const int64_t floats = padded + padded_v + kKeys;
  const int64_t heads = div_up(group * int64_t(sizeof(Head)), 64) * 16;
  const ScoreCap cap(a.cap);
  float* const memory = thread_scratch(heads + group * floats);
  Head* const head = reinterpret_cast<Head*>(memory);
  for (int64_t h = 0; h < group; ++h) {
    float* const q = memory + heads + h * floats;
    head[h] = {q, q + padded, q + padded + kKeys, -__builtin_inff(), 0};
    const T* from = data_of<T>(a.q.data) + t * a.q.token_stride + (head0 + h) * D;
    for_lanes(D,
              [&](int64_t d, auto m) { store(q + d, load(from + d, m) * (a.scale * kLog2E), m); });
    for_lanes(Dv, [&](int64_t d, auto m) { store(head[h].out + d, Vf{}, m); });
  }
  for (int64_t key0 = first / kKeys * kKeys; key0 < end; key0 += kKeys) {
    const int64_t keys = min_of(kKeys, end - key0), begin = max_of(0, first - key0);
    const int64_t c0 = begin / kLanes * kLanes;
    score_keys(head, group, k + key0 * ks, ks, c0, keys, D);
    if (cap) cap_scores(cap, head, group, c0, keys);
    float decay[kHeads];
    for (int64_t h = 0; h < group; ++h) decay[h] = update(head[h], c0, begin, keys);
    int64_t h = 0;
    for (; h + 4 <= group; h += 4)
      add_values<4>(head + h, decay + h, v + key0 * vs, vs, begin, keys, Dv);
    for (; h < group; ++h) add_values<1>(head + h, decay + h, v + key0 * vs, vs, begin, keys, Dv);
  }
  for (int64_t h = 0; h < group; ++h) {
    T* to = data_of<T>(a.out.data) + t * a.out.token_stride + (head0 + h) * Dv;
    const float factor = 1.0f / head[h].sum;
    for_lanes(Dv, [&](int64_t d, auto m) { store(to + d, load(head[h].out + d, m) * factor, m); });
  }
}

}  // namespace

void run(const AttentionDecode& a);
void run(const AttentionDecode& a) {
  with_float(a.q.data.dtype, [&]<class T>() {
    const int64_t group = a.A / a.G, parts = div_up(group, kHeads), of_row = a.G * parts;
    parallel(a.T * of_row, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t g = i % of_row / parts, first = i % parts * kHeads;
        decode<T>(a, i / of_row, g, g * group + first, min_of(kHeads, group - first));
      }
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
