#include "kernels/cuda/cudnn/attention_graph.h"

#include <limits>

#include <fmt/core.h>

namespace mtrain::kernels::cuda {
namespace {

constexpr int64_t kVector = 16;  // bytes that the engines read at once

std::string why_not_view(const char* name, const ConstSpan& data, int64_t token_stride) {
  if (data.dtype != DType::bf16) return fmt::format("{} is {}", name, dtype_name(data.dtype));
  if (reinterpret_cast<uintptr_t>(data.data) % kVector != 0 ||
      token_stride * dtype_size(data.dtype) % kVector != 0)
    return fmt::format("{} is not on {}-byte borders", name, kVector);
  return "";
}
std::string why_not_view(const char* name, const HeadView& v) {
  return why_not_view(name, v.data, v.token_stride);
}
std::string why_not_view(const char* name, const HeadSpan& v) {
  return why_not_view(name, ConstSpan(v.data), v.token_stride);
}

std::string why_not_target(const CudnnTarget& t) {
  if (t.version < 91100)  // which mask with infinity, and have no known errors in the backward
    return fmt::format("cuDNN {}.{} is older than 9.11", t.version / 10000, t.version / 100 % 100);
  if (t.architecture < 80) return fmt::format("sm_{} is older than sm_80", t.architecture);
  return "";
}

std::string why_not_shape(const AttentionShape& s, const CudnnTarget& t) {
  if (auto why = why_not_target(t); !why.empty()) return why;
  if (s.q_documents.begin) return "packed documents";
  if (s.q_start != 0) return "queries that start at another position than the keys";
  if (s.window > 0 && !s.causal) return "a window that looks ahead";
  if (s.Sq > s.Skv && s.window > 0) return "more queries than keys, with a window";
  if (s.lse_stride != 0 && s.lse_stride != s.Sq) return "the lse of a part of the rows";
  if (s.Sq < 2 || s.Skv < 2) return "sequences of one token";
  // Hopper's engines have larger tiles.
  const int64_t most = t.architecture == 90 ? 256 : 128;
  if (s.D % 8 != 0 || s.D > most)
    return fmt::format("heads of {} elements (cuDNN: multiples of 8 up to {})", s.D, most);
  return "";
}

template <class... Views>
std::string first_reason(const AttentionShape& s, const CudnnTarget& t, const Views&... views) {
  std::string why = why_not_shape(s, t);
  const auto look = [&](const auto& named) {
    if (why.empty()) why = why_not_view(named.first, named.second);
  };
  (look(views), ...);
  return why;
}
template <class View>
std::pair<const char*, const View&> named(const char* name, const View& view) {
  return {name, view};
}

// Element (b, s, h, d) of a view is at (s B + b) token_stride + h D + d.
struct Layout {
  int64_t B, S, heads, D, token_stride;

  int64_t rows() const { return B * token_stride; }  // from a position to the next
  // Of one sequence the stride between sequences has no meaning: the one of a whole is given.
  int64_t batch() const { return B == 1 ? S * token_stride : token_stride; }
  int64_t plain(OperationGraph& g, int64_t id) const {
    return g.memory(id, {B, heads, S, D}, {batch(), D, rows(), 1}, Element::bf16);
  }
  int64_t transposed(OperationGraph& g, int64_t id) const {
    return g.memory(id, {B, heads, D, S}, {batch(), D, 1, rows()}, Element::bf16);
  }
};
Layout query_layout(const CudnnAttentionKey& k, int64_t stride) {
  return {k.B, k.Sq, k.A, k.D, stride};
}
Layout key_layout(const CudnnAttentionKey& k, int64_t stride) {
  return {k.B, k.Skv, k.G, k.D, stride};
}
Sizes row_sizes(const CudnnAttentionKey& k) { return {k.B, k.A, k.Sq, 1}; }
int64_t lse_tensor(OperationGraph& g, const CudnnAttentionKey& k) {
  return g.memory(kLse, row_sizes(k), packed_strides(row_sizes(k)), Element::f32);
}

constexpr int64_t kRowDim = 2, kColumnDim = 3;

// Without direction and strides, which stay 0.
CudnnAttentionKey key_of(const AttentionShape& s) {
  CudnnAttentionKey key{};
  key.causal = s.causal, key.window = s.window, key.scale = s.scale;
  key.B = s.B, key.Sq = s.Sq, key.Skv = s.Skv, key.A = s.A, key.G = s.G, key.D = s.D;
  return key;
}

// Scores that a row may not see become -infinity.
int64_t masked(OperationGraph& g, const CudnnAttentionKey& key, int64_t scores) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  if (key.causal) {
    const int64_t never = g.value(kNever);
    const int64_t row = g.index(scores, kRowDim), column = g.index(scores, kColumnDim);
    const int64_t seen = g.compare(Operation::greater_equal, row, column);
    scores = g.pointwise(Operation::select, {scores, never, seen});
  }
  if (key.window > 0) {
    const int64_t never = g.value(kNever), window = g.value(float(key.window));
    const int64_t row = g.index(scores, kRowDim), column = g.index(scores, kColumnDim);
    const int64_t last = g.pointwise(Operation::add, {column, window});
    const int64_t seen = g.compare(Operation::greater, last, row);
    scores = g.pointwise(Operation::select, {scores, never, seen});
  }
  return scores;
}

// dk or dv from a product per query head: the sum over those that share a kv head.
void into_kv_heads(OperationGraph& g, const CudnnAttentionKey& k, int64_t x, int64_t y,
                   int64_t into) {
  if (k.A == k.G) return g.matmul_into(x, y, into);
  const int64_t per_query_head = g.matmul(x, y);
  g.round(per_query_head, Element::bf16);
  g.reduce_into(Operation::reduce_add, per_query_head, into);
}

}  // namespace

CudnnAttentionKey key_of(const AttentionForward& f) {
  CudnnAttentionKey key = key_of(f.shape);
  key.backward = false, key.deterministic = true;
  key.q = f.q.token_stride, key.k = f.k.token_stride, key.v = f.v.token_stride;
  key.out = f.out.token_stride;
  return key;
}
CudnnAttentionKey key_of(const AttentionBackward& b, bool deterministic) {
  CudnnAttentionKey key = key_of(b.shape);
  key.backward = true, key.deterministic = deterministic;
  key.q = b.q.token_stride, key.k = b.k.token_stride, key.v = b.v.token_stride;
  key.out = b.out.token_stride, key.dout = b.dout.token_stride;
  key.dq = b.dq.token_stride, key.dk = b.dk.token_stride, key.dv = b.dv.token_stride;
  return key;
}

std::string why_not_cudnn(const AttentionForward& f, const CudnnTarget& target) {
  return first_reason(f.shape, target, named("q", f.q), named("k", f.k), named("v", f.v),
                      named("out", f.out));
}
std::string why_not_cudnn(const AttentionBackward& b, const CudnnTarget& target) {
  if (b.add_dq || b.add_dkv) return "gradients that are added to";
  // Older ones compute with keys beyond the last, unless told each sequence's length.
  if (target.version < 91600 && b.shape.Skv % 128 != 0)
    return fmt::format("a backward of {} keys (before 9.16: multiples of 128)", b.shape.Skv);
  return first_reason(b.shape, target, named("q", b.q), named("k", b.k), named("v", b.v),
                      named("out", b.out), named("dout", b.dout), named("dq", b.dq),
                      named("dk", b.dk), named("dv", b.dv));
}

OperationGraph forward_graph(const CudnnAttentionKey& key) {
  OperationGraph g;
  const int64_t q = query_layout(key, key.q).plain(g, kQuery);
  const int64_t k = key_layout(key, key.k).transposed(g, kKey);
  const int64_t v = key_layout(key, key.v).plain(g, kValue);
  const int64_t out = query_layout(key, key.out).plain(g, kOut);
  const int64_t lse = lse_tensor(g, key);
  const int64_t products = g.matmul(q, k);
  const int64_t scores =
      masked(g, key, g.pointwise(Operation::mul, {products, g.value(key.scale)}));
  const int64_t most = g.reduce(Operation::reduce_max, scores, row_sizes(key));
  const int64_t weights =
      g.pointwise(Operation::exp, {g.pointwise(Operation::sub, {scores, most})});
  const int64_t sum = g.reduce(Operation::reduce_add, weights, row_sizes(key));
  g.pointwise_into(Operation::add, {most, g.pointwise(Operation::log, {sum})}, lse);
  const int64_t probabilities = g.pointwise(Operation::div, {weights, sum});
  g.round(probabilities, Element::bf16);
  g.matmul_into(probabilities, v, out);
  return g;
}

OperationGraph backward_graph(const CudnnAttentionKey& key) {
  OperationGraph g;
  const Layout query = query_layout(key, key.q), keys = key_layout(key, key.k);
  const int64_t q = query.plain(g, kQuery), k = keys.transposed(g, kKey);
  const int64_t v = key_layout(key, key.v).transposed(g, kValue);
  const int64_t out = query_layout(key, key.out).plain(g, kOut);
  const int64_t dout = query_layout(key, key.dout).plain(g, kOutGradient);
  const int64_t dq = query_layout(key, key.dq).plain(g, kQueryGradient);
  const int64_t dk = key_layout(key, key.dk).plain(g, kKeyGradient);
  const int64_t dv = key_layout(key, key.dv).plain(g, kValueGradient);
  const int64_t lse = lse_tensor(g, key);
  const int64_t scale = g.value(key.scale);

  // delta = sum of dout out over a head; the engines want the product with a number after it.
  const int64_t delta = g.workspace(row_sizes(key), Element::f32);
  const int64_t products = g.pointwise(Operation::mul, {dout, out});
  const int64_t sums = g.reduce(Operation::reduce_add, products, row_sizes(key));
  g.pointwise_into(Operation::mul, {sums, g.value(1)}, delta);

  // p = exp(scores - lse), dv = p^T dout. The mask comes last, so that what it hides is 0.
  const int64_t scores = g.pointwise(Operation::mul, {g.matmul(q, k), scale});
  const int64_t p =
      g.pointwise(Operation::exp, {masked(g, key, g.pointwise(Operation::sub, {scores, lse}))});
  const Sizes across{key.B, key.A, key.Skv, key.Sq};
  const Sizes across_strides{key.A * key.Sq * key.Skv, key.Sq * key.Skv, 1, key.Skv};
  into_kv_heads(g, key, g.reshape(p, across, across_strides, Element::bf16), dout, dv);

  // ds = scale p (dout v^T - delta), dk = ds^T q, dq = ds k
  const int64_t dp = g.pointwise(Operation::sub, {g.matmul(dout, v), delta});
  const int64_t ds = g.pointwise(Operation::mul, {g.pointwise(Operation::mul, {dp, p}), scale});
  into_kv_heads(g, key, g.reshape(ds, across, across_strides, Element::bf16), q, dk);
  const int64_t k_rows = g.reshape(k, {key.B, key.G, key.Skv, key.D},
                                   {keys.batch(), key.D, keys.rows(), 1}, Element::bf16);
  if (key.deterministic) {
    g.matmul_into(ds, k_rows, dq);
  } else {
    const int64_t sum = g.sums({key.B, key.A, key.Sq, key.D});
    g.matmul_into(ds, k_rows, sum);
    g.pointwise_into(Operation::identity, {sum}, dq);
  }
  return g;
}

}  // namespace mtrain::kernels::cuda
