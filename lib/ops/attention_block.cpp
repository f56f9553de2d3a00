#include "ops/attention_block.h"

#include "base/math.h"
#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "ops/attention_views.h"

MT_KERNEL(AttentionMerge)

namespace mtrain::ops {

namespace {

kernels::AttentionShape block_shape(const Device& device, const AttentionBlock& b,
                                    int64_t lse_stride) {
  const bool documents = bool(b.q_documents.begin);
  const int64_t Sq = b.q.end - b.q.begin, Skv = b.kv.end - b.kv.begin;
  return {.B = b.B,
          .Sq = Sq,
          .Skv = Skv,
          .A = b.A,
          .G = b.G,
          .D = b.D,
          .Dv = b.Dv,
          .causal = b.causal,
          .q_start = b.causal && !documents ? Skv - Sq : 0,
          .window = b.window,
          .q_documents = {b.q_documents.begin, b.q_documents.end},
          .kv_documents = {b.kv_documents.begin, b.kv_documents.end},
          .document_gaps = documents,
          .scale = b.scale,
          .cap = b.cap,
          .lse_stride = lse_stride,
          .own_kernels = device.own_attention()};
}

// Returns the memory of `heads` heads of D elements of these positions, from head h.first of the
// first position to the last of these heads of the last position.
Span heads_at(const AttentionBlock& b, const Heads& h, int64_t heads, int64_t D, Rows rows) {
  const int64_t N = h.x_TN.dim(1), T = (rows.end - rows.begin) * b.B;
  if (T == 0) return h.x_TN.flat(0, {0});
  return h.x_TN.flat(rows.begin * b.B * N + h.column + h.first * D, {(T - 1) * N + heads * D});
}
kernels::HeadView view_of(const AttentionBlock& b, const Heads& h, int64_t heads, int64_t D,
                          Rows rows) {
  return {heads_at(b, h, heads, D, rows), h.x_TN.dim(1)};
}
// The memory of a result is written in part if the rows have other heads, which stay unchanged.
kernels::HeadSpan span_of(const AttentionBlock& b, const Heads& h, int64_t heads, int64_t D,
                          Rows rows) {
  const Span x = heads_at(b, h, heads, D, rows);
  return {h.x_TN.dim(1) != heads * D ? partly_written(x) : x, h.x_TN.dim(1)};
}
// Returns the memory of the S positions of lse (B, A, positions) that start at `first`.
Span lse_at(const Tensor& lse, int64_t first, int64_t S) {
  if (S == 0) return lse.flat(0, {0});
  return lse.flat(first, {lse.count() - lse.dim(2) + S});
}
Span lse_at(const AttentionBlock& b, const Tensor& lse) {
  return lse_at(lse, b.q.begin, b.q.end - b.q.begin);
}

void check_block(const char* op, const AttentionBlock& b) {
  MT_CHECK(b.A > 0 && b.G > 0 && b.A % b.G == 0, "{}: {} query heads, {} kv heads", op, b.A, b.G);
  MT_CHECK(0 <= b.q.begin && b.q.begin <= b.q.end && 0 <= b.kv.begin && b.kv.begin <= b.kv.end,
           "{}: queries [{}, {}), keys [{}, {})", op, b.q.begin, b.q.end, b.kv.begin, b.kv.end);
  const Tensor* const documents[] = {&b.q_documents.begin, &b.q_documents.end,
                                     &b.kv_documents.begin, &b.kv_documents.end};
  for (const Tensor* d : documents) {
    MT_CHECK(bool(*d) == bool(*documents[0]) && d->count() == documents[0]->count(),
             "{}: {} and {} documents", op, documents[0]->count(), d->count());
    MT_CHECK(!*d || (d->dtype() == DType::i32 && d->count() > 0 && b.B == 1),
             "{}: {} documents, {}, B {}", op, d->count(), dtype_name(d->dtype()), b.B);
  }
}
void check_heads(const char* op, const char* name, const AttentionBlock& b, const Heads& h,
                 int64_t heads, int64_t D, Rows rows) {
  const Shape& shape = h.x_TN.shape();
  MT_CHECK(shape.rank() == 2 && shape[0] >= rows.end * b.B &&
               shape[1] >= h.column + (h.first + heads) * D && h.first >= 0 && h.column >= 0,
           "{}: {} is {}, expected {} heads of {} from {} on, {} rows", op, name, shape.str(),
           heads, D, h.first, rows.end * b.B);
}
void check_lse(const char* op, const AttentionBlock& b, const Tensor& lse) {
  MT_CHECK(lse.shape().rank() == 3 && lse.dim(0) == b.B && lse.dim(1) == b.A &&
               lse.dim(2) >= b.q.end && lse.dtype() == DType::f32,
           "{}: lse is {} {}, expected fp32 ({}, {}, {} or more)", op, dtype_name(lse.dtype()),
           lse.shape().str(), b.B, b.A, b.q.end);
}
void check_operands(const char* op, const AttentionBlock& b, const Heads& q, const Heads& k,
                    const Heads& v) {
  check_block(op, b);
  check_heads(op, "q", b, q, b.A, b.D, b.q);
  check_heads(op, "k", b, k, b.G, b.D, b.kv);
  check_heads(op, "v", b, v, b.G, b.value_dim(), b.kv);
  const DType dtype = q.x_TN.dtype();
  MT_CHECK(is_float(dtype), "{}: q is {}, expected fp32, bf16 or fp16", op, dtype_name(dtype));
  MT_CHECK(k.x_TN.dtype() == dtype && v.x_TN.dtype() == dtype, "{}: q is {}, k {}, v {}", op,
           dtype_name(dtype), dtype_name(k.x_TN.dtype()), dtype_name(v.x_TN.dtype()));
}
void check_result(const char* op, const char* name, const Heads& result, const Heads& q) {
  const DType dtype = result.x_TN.dtype();
  MT_CHECK(dtype == DType::f32 || dtype == q.x_TN.dtype(), "{}: {} is {}, q {}", op, name,
           dtype_name(dtype), dtype_name(q.x_TN.dtype()));
}

}  // namespace

void attention_block(Stream& stream, const AttentionBlock& b, const Heads& q, const Heads& k,
                     const Heads& v, const AttentionResult& into) {
  const char* op = "attention_block";
  check_operands(op, b, q, k, v);
  const Heads out{into.out_TN, b.out_head};
  check_heads(op, "out", b, out, b.A, b.value_dim(), b.q);
  check_result(op, "out", out, q);
  check_lse(op, b, into.lse);
  // The lse of queries that attend to no key is -inf.
  enqueue(stream, "attention_block_fwd",
          kernels::AttentionForward{.shape = block_shape(stream.device(), b, into.lse.dim(2)),
                                    .q = view_of(b, q, b.A, b.D, b.q),
                                    .k = view_of(b, k, b.G, b.D, b.kv),
                                    .v = view_of(b, v, b.G, b.value_dim(), b.kv),
                                    .out = span_of(b, out, b.A, b.value_dim(), b.q),
                                    .lse = partly_written(lse_at(b, into.lse)),
                                    .bf16 = bf16_of(stream.device())});
}

void attention_merge(Stream& stream, const AttentionResult& block, const AttentionResult& into,
                     int64_t first) {
  const int64_t B = block.lse.dim(0), A = block.lse.dim(1), S = block.lse.dim(2),
                whole = into.lse.dim(2), N = into.out_TN.dim(1);
  MT_CHECK(first >= 0 && first + S <= whole, "attention_merge: {} positions from {} on, of {}", S,
           first, whole);
  MT_SHAPE("attention_merge", into.lse, {B, A, whole});
  MT_SHAPE("attention_merge", into.out_TN, {B * whole, N});
  MT_SHAPE("attention_merge", block.out_TN, {B * S, N});
  MT_FLOAT("attention_merge", block.out_TN);
  MT_DTYPE("attention_merge", block.lse, DType::f32);
  MT_DTYPE("attention_merge", into.lse, DType::f32);
  MT_DTYPE("attention_merge", into.out_TN, DType::f32);
  enqueue(stream, "attention_merge",
          kernels::AttentionMerge{.block_out_TN = block.out_TN,
                                  .block_lse = block.lse,
                                  .out_TN = into.out_TN.rows(first * B, (first + S) * B),
                                  .lse = partly_written(lse_at(into.lse, first, S)),
                                  .B = B,
                                  .S = S,
                                  .A = A,
                                  .D = exact_div(N, A),
                                  .lse_stride = whole});
}

void attention_block_backward(Stream& stream, const AttentionBlock& b, const Heads& q,
                              const Heads& k, const Heads& v, const AttentionResult& merged,
                              const Tensor& dout_TN, const AttentionGrads& grads) {
  const char* op = "attention_block_backward";
  check_operands(op, b, q, k, v);
  const Heads out{merged.out_TN, b.out_head}, dout{dout_TN, b.out_head};
  check_heads(op, "out", b, out, b.A, b.value_dim(), b.q);
  check_heads(op, "dout", b, dout, b.A, b.value_dim(), b.q);
  check_heads(op, "dq", b, grads.dq, b.A, b.D, b.q);
  check_heads(op, "dk", b, grads.dk, b.G, b.D, b.kv);
  check_heads(op, "dv", b, grads.dv, b.G, b.value_dim(), b.kv);
  check_result(op, "dq", grads.dq, q);
  check_result(op, "dk", grads.dk, q);
  check_result(op, "dv", grads.dv, q);
  check_lse(op, b, merged.lse);
  MT_DTYPE("attention_block_backward", merged.out_TN, q.x_TN.dtype());
  MT_DTYPE("attention_block_backward", dout_TN, q.x_TN.dtype());
  enqueue(stream, "attention_block_bwd",
          kernels::AttentionBackward{.shape = block_shape(stream.device(), b, merged.lse.dim(2)),
                                     .q = view_of(b, q, b.A, b.D, b.q),
                                     .k = view_of(b, k, b.G, b.D, b.kv),
                                     .v = view_of(b, v, b.G, b.value_dim(), b.kv),
                                     .out = view_of(b, out, b.A, b.value_dim(), b.q),
                                     .dout = view_of(b, dout, b.A, b.value_dim(), b.q),
                                     .lse = lse_at(b, merged.lse),
                                     .dq = span_of(b, grads.dq, b.A, b.D, b.q),
                                     .dk = span_of(b, grads.dk, b.G, b.D, b.kv),
                                     .dv = span_of(b, grads.dv, b.G, b.value_dim(), b.kv),
                                     .add_dq = grads.add_dq,
                                     .add_dkv = grads.add_dkv,
                                     .fixed_order = stream.device().fixed_attention_order(),
                                     .bf16 = bf16_of(stream.device())});
}

}  // namespace mtrain::ops
