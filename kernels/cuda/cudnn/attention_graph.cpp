#include "kernels/cuda/cudnn/attention_graph.h"

#include <algorithm>
#include <bit>
#include <limits>

#include <fmt/core.h>

namespace mtrain::kernels::cuda {
namespace {

constexpr int64_t kVector = 16;  // bytes that the engines read at once

// All views must have one 16-bit type.
std::string why_not_view(const char* name, const ConstSpan& data, int64_t token_stride,
                         DType type) {
  if (data.dtype != type || !is_half(type))
    return fmt::format("{} is {}", name, dtype_name(data.dtype));
  if (reinterpret_cast<uintptr_t>(data.data) % kVector != 0 ||
      token_stride * dtype_size(data.dtype) % kVector != 0)
    return fmt::format("{} is not on {}-byte borders", name, kVector);
  return "";
}
std::string why_not_view(const char* name, const HeadView& v, DType type) {
  return why_not_view(name, v.data, v.token_stride, type);
}
std::string why_not_view(const char* name, const HeadSpan& v, DType type) {
  return why_not_view(name, ConstSpan(v.data), v.token_stride, type);
}

std::string why_not_target(const CudnnTarget& t) {
  // Since 9.11 cuDNN masks with infinity, and has no known errors in the backward.
  if (t.version < 91100)
    return fmt::format("cuDNN {}.{} is older than 9.11", t.version / 10000, t.version / 100 % 100);
  if (t.architecture < 80) return fmt::format("sm_{} is older than sm_80", t.architecture);
  return "";
}

// For each document that fits into the tables, engines start as many blocks as the longest possible
// document needs. With short documents most blocks would be idle. The mean does not depend on how
// many packs follow each other, nor does the longest possible document.
constexpr int64_t kMinRows = 128;  // the smallest mean number of rows of a document

std::string why_not_documents(const AttentionShape& s, const CudnnTarget& t) {
  const int64_t documents = s.q_documents.begin.count;
  // cuDNN's engines for packed documents have known errors on these.
  if (t.architecture / 10 == 8 || t.architecture / 10 == 12)
    return fmt::format("packed documents on sm_{}", t.architecture);
  if (documents < 1) return "a pack without documents";
  if (s.document_gaps || s.q_documents.begin.data != s.kv_documents.begin.data)
    return "documents that are divided among ranks";
  if (documents * kMinRows > s.Sq)
    return fmt::format("packed documents with fewer than {} rows on average", kMinRows);
  if (s.D % 16 != 0) return fmt::format("documents with heads of {} elements", s.D);
  return "";
}
// Returns why the documents' offsets do not fit into 32 bits, or "".
std::string why_not_offsets(const AttentionShape& s, std::initializer_list<int64_t> strides) {
  if (s.q_documents.begin && std::max(strides) * s.Sq > INT32_MAX)
    return fmt::format("documents in {} rows of {} elements", s.Sq, std::max(strides));
  return "";
}

std::string why_not_shape(const AttentionShape& s, const CudnnTarget& t) {
  if (auto why = why_not_target(t); !why.empty()) return why;
  if (s.q_documents.begin)
    if (auto why = why_not_documents(s, t); !why.empty()) return why;
  if (s.q_start != 0) return "queries that start at a different position from the keys";
  if (s.cap > 0) return "capped scores";
  if (s.window > 0 && !s.causal) return "a window without a causal mask";
  if (s.Sq > s.Skv && s.window > 0) return "more queries than keys, with a window";
  if (s.lse_stride != 0 && s.lse_stride != s.Sq) return "log-sum-exps of some of the rows";
  if (s.Sq < 2 || s.Skv < 2) return "sequences of one token";
  // Hopper's engines have larger tiles.
  const int64_t most = t.architecture == 90 ? 256 : 128;
  if (s.D % 8 != 0 || s.D > most)
    return fmt::format("heads of {} elements (cuDNN: multiples of 8 up to {})", s.D, most);
  return "";
}

template <class... Views>
std::string first_reason(const AttentionShape& s, const CudnnTarget& t, DType type,
                         const Views&... views) {
  std::string why = why_not_shape(s, t);
  const auto look = [&](const auto& named) {
    if (why.empty()) why = why_not_view(named.first, named.second, type);
  };
  (look(views), ...);
  return why;
}
template <class View>
std::pair<const char*, const View&> named(const char* name, const View& view) {
  return {name, view};
}

int64_t offsets_tensor(OperationGraph& g, int64_t of, int64_t documents) {
  return g.memory(offsets_of(of), {documents + 1, 1, 1, 1}, {1, 1, 1, 1}, Element::i32);
}

// Element (b, s, h, d) of a view is at (s B + b) token_stride + h D + d; of packed documents at
// (offsets[b] + s token_stride) + h D + d.
struct Layout {
  int64_t B, S, heads, D, token_stride;
  int64_t all_rows;  // of all documents
  bool documents;
  Element type;

  // Returns the elements from one row to the next.
  int64_t rows() const { return documents ? token_stride : B * token_stride; }
  // With one sequence the stride between sequences is not used; it gets a valid value.
  int64_t batch() const { return documents || B == 1 ? S * token_stride : token_stride; }
  int64_t room() const { return all_rows * token_stride; }  // elements of all documents
  int64_t plain(OperationGraph& g, int64_t id) const {
    return add(g, id, {B, heads, S, D}, {batch(), D, rows(), 1});
  }
  int64_t transposed(OperationGraph& g, int64_t id) const {
    return add(g, id, {B, heads, D, S}, {batch(), D, 1, rows()});
  }

 private:
  int64_t add(OperationGraph& g, int64_t id, Sizes dims, const Sizes& strides) const {
    const int64_t offsets = documents ? offsets_tensor(g, id, B) : 0;
    g.memory(id, std::move(dims), strides, type);
    g.set_offsets(id, offsets, strides, room());
    return id;
  }
};
Layout query_layout(const CudnnAttentionKey& k, int64_t stride) {
  return {k.B, k.Sq, k.A, k.D, stride, k.rows, k.documents, k.type};
}
Layout key_layout(const CudnnAttentionKey& k, int64_t stride) {
  return {k.B, k.Skv, k.G, k.D, stride, k.rows, k.documents, k.type};
}
Sizes row_sizes(const CudnnAttentionKey& k) { return {k.B, k.A, k.Sq, 1}; }
Sizes row_strides(const CudnnAttentionKey& k) {
  const int64_t all = k.lse_heads * k.rows;
  return k.documents ? Sizes{all, 1, k.lse_heads, 1} : Sizes{all, k.Sq, 1, 1};
}
int64_t lse_tensor(OperationGraph& g, const CudnnAttentionKey& k) {
  const int64_t offsets = k.documents ? offsets_tensor(g, kLse, k.B) : 0;
  g.memory(kLse, row_sizes(k), row_strides(k), Element::f32);
  g.set_offsets(kLse, offsets, row_strides(k), k.lse_heads * k.rows);
  return kLse;
}

// The documents' lengths, if a graph has documents; otherwise every length is 0, which means all
// rows.
struct Lengths {
  int64_t q = 0, kv = 0;
  Lengths(OperationGraph& g, const CudnnAttentionKey& k) {
    if (!k.documents) return;
    q = g.memory(kQueryLengths, {k.B, 1, 1, 1}, {1, 1, 1, 1}, Element::i32);
    kv = g.memory(kKeyLengths, {k.B, 1, 1, 1}, {1, 1, 1, 1}, Element::i32);
  }
};

constexpr int64_t kRowDim = 2, kColumnDim = 3;

Element element_of(DType dtype) { return dtype == DType::f16 ? Element::f16 : Element::bf16; }

// Returns the key without direction, type and strides, which stay 0.
CudnnAttentionKey key_of(const AttentionShape& s) {
  CudnnAttentionKey key{};
  key.causal = s.causal, key.window = s.window, key.scale = s.scale;
  key.B = s.B, key.Sq = s.Sq, key.Skv = s.Skv, key.A = s.A, key.G = s.G, key.D = s.D;
  key.lse_heads = s.A;
  key.rows = s.Sq;
  key.documents = bool(s.q_documents.begin);
  if (!key.documents) return key;
  // The number of documents differs between packs. It is rounded up to a power of two: packs then
  // share plans. So does the length that documents may have, which is not that of the longest.
  key.B = int64_t(std::bit_ceil(uint64_t(s.q_documents.begin.count)));
  if (s.longest_document > 0) key.Sq = key.Skv = std::min(s.longest_document, s.Sq);
  return key;
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Scores after a document's last row or key become -infinity.
int64_t within(OperationGraph& g, const Lengths& lengths, int64_t scores) {
  if (lengths.q == 0) return scores;
  const int64_t never = g.value(kNever);
  const int64_t row = g.compare(Operation::less, g.index(scores, kRowDim), lengths.q);
  const int64_t column = g.compare(Operation::less, g.index(scores, kColumnDim), lengths.kv);
  const int64_t both = g.compare(Operation::logical_and, row, column);
  return g.pointwise(Operation::select, {scores, never, both});
}

// Scores of keys that a row must not attend to become -infinity.
int64_t masked(OperationGraph& g, const CudnnAttentionKey& key, int64_t scores) {
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

// Returns dk or dv from the gradient of each query head: the sum over the query heads that share a
// kv head.
void into_kv_heads(OperationGraph& g, const CudnnAttentionKey& k, const Lengths& lengths, int64_t x,
                   int64_t y, int64_t into) {
  const MatmulLengths counts{.M = lengths.kv, .K = lengths.q};
  if (k.A == k.G) return g.matmul_into(x, y, into, counts);
  if (!k.documents) {
    const int64_t per_query_head = g.matmul(x, y, counts);
    g.round(per_query_head, k.type);
    return g.reduce_into(Operation::reduce_add, per_query_head, into);
  }
  // With documents of unequal length, the gradients of the query heads go to memory. Their offsets
  // there are the kv heads' offsets times the number of query heads that share a kv head.
  const int64_t sharing = k.A / k.G;
  const int64_t per_query_head = g.workspace({k.B, k.A, k.Skv, k.D}, k.type);
  const GraphTensor kv_heads = g.tensor(into);
  Sizes strides = kv_heads.strides;
  strides[0] *= sharing, strides[2] *= sharing;
  g.set_offsets(per_query_head, kv_heads.offsets, strides, kv_heads.room * sharing);
  g.matmul_into(x, y, per_query_head, counts);
  g.reduce_into(Operation::reduce_add, per_query_head, into);
}

}  // namespace

CudnnAttentionKey key_of(const AttentionForward& f) {
  CudnnAttentionKey key = key_of(f.shape);
  key.backward = false, key.deterministic = true;
  key.type = element_of(f.q.data.dtype);
  key.q = f.q.token_stride, key.k = f.k.token_stride, key.v = f.v.token_stride;
  key.out = f.out.token_stride;
  return key;
}
CudnnAttentionKey key_of(const AttentionBackward& b) {
  CudnnAttentionKey key = key_of(b.shape);
  key.backward = true, key.deterministic = b.fixed_order;
  key.type = element_of(b.q.data.dtype);
  key.q = b.q.token_stride, key.k = b.k.token_stride, key.v = b.v.token_stride;
  key.out = b.out.token_stride, key.dout = b.dout.token_stride;
  key.dq = b.dq.token_stride, key.dk = b.dk.token_stride, key.dv = b.dv.token_stride;
  if (key.documents) key.dq = key.A * key.D, key.dk = key.dv = key.G * key.D;
  return key;
}

std::string why_not_cudnn(const AttentionForward& f, const CudnnTarget& target) {
  if (auto why = first_reason(f.shape, target, f.q.data.dtype, named("q", f.q), named("k", f.k),
                              named("v", f.v), named("out", f.out));
      !why.empty())
    return why;
  return why_not_offsets(
      f.shape, {f.q.token_stride, f.k.token_stride, f.v.token_stride, f.out.token_stride});
}
std::string why_not_cudnn(const AttentionBackward& b, const CudnnTarget& target) {
  if (b.add_dq || b.add_dkv) return "gradients that are added to";
  // Older versions compute with keys beyond the last, unless they get each sequence's length.
  if (target.version < 91600 && b.shape.Skv % 128 != 0 && !b.shape.q_documents.begin)
    return fmt::format("a backward of {} keys (before 9.16: multiples of 128)", b.shape.Skv);
  if (auto why = first_reason(b.shape, target, b.q.data.dtype, named("q", b.q), named("k", b.k),
                              named("v", b.v), named("out", b.out), named("dout", b.dout),
                              named("dq", b.dq), named("dk", b.dk), named("dv", b.dv));
      !why.empty())
    return why;
  return why_not_offsets(b.shape, {b.q.token_stride, b.k.token_stride, b.v.token_stride,
                                   b.out.token_stride, b.dout.token_stride});
}

OperationGraph forward_graph(const CudnnAttentionKey& key) {
  OperationGraph g;
  const Lengths lengths(g, key);
  const int64_t q = query_layout(key, key.q).plain(g, kQuery);
  const int64_t k = key_layout(key, key.k).transposed(g, kKey);
  const int64_t v = key_layout(key, key.v).plain(g, kValue);
  const int64_t out = query_layout(key, key.out).plain(g, kOut);
  const int64_t lse = lse_tensor(g, key);
  const int64_t unscaled = g.matmul(q, k, {.M = lengths.q, .N = lengths.kv});
  const int64_t scaled = g.pointwise(Operation::mul, {unscaled, g.value(key.scale)});
  const int64_t scores = masked(g, key, within(g, lengths, scaled));
  const int64_t most = g.reduce(Operation::reduce_max, scores, row_sizes(key));
  const int64_t weights =
      g.pointwise(Operation::exp, {g.pointwise(Operation::sub, {scores, most})});
  const int64_t sum = g.reduce(Operation::reduce_add, weights, row_sizes(key));
  g.pointwise_into(Operation::add, {most, g.pointwise(Operation::log, {sum})}, lse);
  const int64_t probabilities = g.pointwise(Operation::div, {weights, sum});
  g.round(probabilities, key.type);
  g.matmul_into(probabilities, v, out, {.M = lengths.q, .K = lengths.kv});
  return g;
}

OperationGraph backward_graph(const CudnnAttentionKey& key) {
  OperationGraph g;
  const Lengths lengths(g, key);
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
  const MatmulLengths rows_keys{.M = lengths.q, .N = lengths.kv};

  // delta = the sum of dout * out over a head; the engines require a multiplication by a number
  // after it.
  const int64_t delta = g.workspace(row_sizes(key), Element::f32);
  g.set_offsets(delta, g.tensor(lse).offsets, row_strides(key), key.lse_heads * key.rows);
  const int64_t products = g.pointwise(Operation::mul, {dout, out});
  const int64_t sums = g.reduce(Operation::reduce_add, products, row_sizes(key));
  g.pointwise_into(Operation::mul, {sums, g.value(1)}, delta);

  // p = exp(scores - lse), dv = p^T dout. The mask comes last: the probabilities of masked scores
  // are 0.
  const int64_t scaled = g.pointwise(Operation::mul, {g.matmul(q, k, rows_keys), scale});
  const int64_t scores = g.pointwise(Operation::sub, {within(g, lengths, scaled), lse});
  const int64_t p = g.pointwise(Operation::exp, {masked(g, key, scores)});
  const Sizes across{key.B, key.A, key.Skv, key.Sq};
  const Sizes across_strides{key.A * key.Sq * key.Skv, key.Sq * key.Skv, 1, key.Skv};
  into_kv_heads(g, key, lengths, g.reshape(p, across, across_strides, key.type), dout, dv);

  // ds = scale p (dout v^T - delta), dk = ds^T q, dq = ds k
  const int64_t dp = g.pointwise(Operation::sub, {g.matmul(dout, v, rows_keys), delta});
  const int64_t ds = g.pointwise(Operation::mul, {g.pointwise(Operation::mul, {dp, p}), scale});
  into_kv_heads(g, key, lengths, g.reshape(ds, across, across_strides, key.type), q, dk);
  const Sizes key_rows{keys.batch(), key.D, keys.rows(), 1};
  const int64_t k_rows = g.reshape(k, {key.B, key.G, key.Skv, key.D}, key_rows, key.type);
  g.set_offsets(k_rows, g.tensor(k).offsets, key_rows, keys.room());
  const MatmulLengths rows_over_keys{.M = lengths.q, .K = lengths.kv};
  if (key.deterministic) {
    g.matmul_into(ds, k_rows, dq, rows_over_keys);
  } else {
    const GraphTensor into = g.tensor(dq);
    // Engines add to it, and set it to 0 before (since cuDNN 9.6).
    const int64_t sum = g.workspace({key.B, key.A, key.Sq, key.D}, Element::f32);
    g.set_offsets(sum, into.offsets, into.strides, into.room);
    g.matmul_into(ds, k_rows, sum, rows_over_keys);
    g.pointwise_into(Operation::identity, {sum}, dq);
  }
  return g;
}

}  // namespace mtrain::kernels::cuda
