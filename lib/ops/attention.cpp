#include "kernels/attention.h"

#include "ops/attention_views.h"
#include "ops/ops.h"

namespace mtrain::ops {

namespace {
kernels::AttentionShape shape_of(const Device& device, const AttentionDims& d,
                                 const Tensor& cu_seqlens) {
  kernels::DocumentRows documents;
  if (cu_seqlens) {
    const int64_t n = cu_seqlens.count() - 1;
    documents = {cu_seqlens.rows(0, n), cu_seqlens.rows(1, n + 1)};
  }
  return {.B = d.B,
          .Sq = d.S,
          .Skv = d.S,
          .A = d.A,
          .G = d.G,
          .D = d.D,
          .causal = d.causal,
          .window = d.window,
          .q_documents = documents,
          .kv_documents = documents,
          .scale = d.scale,
          .cap = d.cap,
          .own_kernels = device.own_attention()};
}
void check_qkv(const AttentionDims& d, const Tensor& qkv_TN, const Tensor& cu_seqlens) {
  MT_SHAPE("attention", qkv_TN, {d.B * d.S, (d.A + 2 * d.G) * d.D});
  MT_FLOAT("attention", qkv_TN);
  if (cu_seqlens) MT_DTYPE("attention", cu_seqlens, DType::i32);
  MT_CHECK(d.A % d.G == 0, "attention: {} query heads, {} kv heads", d.A, d.G);
}
}  // namespace

bool attention_writes_float8(const Device& device) {
  return !device.is_cuda() || device.own_attention();
}

AttentionResult attention(Stream& stream, const AttentionDims& d, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const Float8Write& write) {
  check_qkv(d, qkv_TN, cu_seqlens);
  const int64_t N = qkv_TN.dim(1);
  AttentionResult r{Tensor::empty(stream, {d.B * d.S, d.A * d.D}, qkv_TN.dtype()),
                    Tensor::empty(stream, {d.B, d.A, d.S}, DType::f32)};
  if (write.in_8_bits()) r.quantized_out_TN = Tensor::empty(stream, r.out_TN.shape(), write.type);
  const kernels::AttentionForward args{.shape = shape_of(stream.device(), d, cu_seqlens),
                                       .q = {heads_from(qkv_TN, 0, d.D), N},
                                       .k = {heads_from(qkv_TN, d.A, d.D), N},
                                       .v = {heads_from(qkv_TN, d.A + d.G, d.D), N},
                                       .out = {r.out_TN, d.A * d.D},
                                       .lse = r.lse,
                                       .bf16 = bf16_of(stream.device()),
                                       .amax = write.amax,
                                       .quantized = r.quantized_out_TN,
                                       .scale = write.scale.scale};
  enqueue(stream,
          {.name = "attention_fwd",
           .reads = {qkv_TN, cu_seqlens, write.scale.scale, write.amax},
           .writes = {r.out_TN, r.lse, r.quantized_out_TN, write.amax}},
          args);
  return r;
}

Tensor attention_backward(Stream& stream, const AttentionDims& d, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const AttentionResult& f, const Tensor& dout_TN,
                          const QkvAmax& amax) {
  check_qkv(d, qkv_TN, cu_seqlens);
  MT_SHAPE("attention_backward", dout_TN, {d.B * d.S, d.A * d.D});
  MT_SHAPE("attention_backward", f.out_TN, {d.B * d.S, d.A * d.D});
  MT_SHAPE("attention_backward", f.lse, {d.B, d.A, d.S});
  MT_DTYPE("attention_backward", dout_TN, qkv_TN.dtype());
  MT_DTYPE("attention_backward", f.out_TN, qkv_TN.dtype());
  MT_DTYPE("attention_backward", f.lse, DType::f32);
  const int64_t N = qkv_TN.dim(1), AD = d.A * d.D;
  Tensor dqkv = Tensor::empty(stream, qkv_TN.shape(), qkv_TN.dtype());
  const kernels::AttentionBackward args{.shape = shape_of(stream.device(), d, cu_seqlens),
                                        .q = {heads_from(qkv_TN, 0, d.D), N},
                                        .k = {heads_from(qkv_TN, d.A, d.D), N},
                                        .v = {heads_from(qkv_TN, d.A + d.G, d.D), N},
                                        .out = {f.out_TN, AD},
                                        .dout = {dout_TN, AD},
                                        .lse = f.lse,
                                        .dq = {heads_from(dqkv, 0, d.D), N},
                                        .dk = {heads_from(dqkv, d.A, d.D), N},
                                        .dv = {heads_from(dqkv, d.A + d.G, d.D), N},
                                        .fixed_order = stream.device().fixed_attention_order(),
                                        .bf16 = bf16_of(stream.device()),
                                        .dqk_amax = amax.dqk,
                                        .dv_amax = amax.dv};
  enqueue(stream,
          {.name = "attention_bwd",
           .reads = {qkv_TN, cu_seqlens, f.out_TN, f.lse, dout_TN, amax.dqk, amax.dv},
           .writes = {dqkv, amax.dqk, amax.dv}},
          args);
  return dqkv;
}

}  // namespace mtrain::ops
