#include "ops/attention.h"

#include "kernels/attention.h"
#include "ops/attention_views.h"

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
          .Dv = d.Dv,
          .causal = d.causal,
          .window = d.window,
          .q_documents = documents,
          .kv_documents = documents,
          .longest_document = d.longest_document,
          .scale = d.scale,
          .cap = d.cap,
          .own_kernels = device.own_attention()};
}
void check_qkv(const AttentionDims& d, const Tensor& qkv_TN, const Tensor& cu_seqlens) {
  MT_SHAPE("attention", qkv_TN, {d.B * d.S, d.qkv_width()});
  MT_FLOAT("attention", qkv_TN);
  if (cu_seqlens) MT_DTYPE("attention", cu_seqlens, DType::i32);
  MT_CHECK(d.A % d.G == 0, "attention: {} query heads, {} kv heads", d.A, d.G);
}
// cuDNN does nothing for a destination, and neither do own CUDA kernels whose values have a size of
// their own.
Destination supported(const Device& device, const AttentionDims& d, const Destination& to) {
  const bool writes = !device.is_cuda() || (device.own_attention() && d.value_dim() == d.D);
  return writes ? to : Destination{};
}
}  // namespace

AttentionResult attention(Stream& stream, const AttentionDims& d, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const Destination& asked) {
  check_qkv(d, qkv_TN, cu_seqlens);
  const int64_t N = qkv_TN.dim(1);
  const Destination to = supported(stream.device(), d, asked);
  AttentionResult r;
  r.written = result_beside(stream, {d.B * d.S, d.A * d.value_dim()}, qkv_TN.dtype(), to);
  r.out_TN = r.written.plain;
  r.lse = Tensor::empty(stream, {d.B, d.A, d.S}, DType::f32);
  const kernels::AttentionForward args{.shape = shape_of(stream.device(), d, cu_seqlens),
                                       .q = {heads_from(qkv_TN, 0, d.D), N},
                                       .k = {heads_from(qkv_TN, d.A, d.D), N},
                                       .v = {elements_from(qkv_TN, (d.A + d.G) * d.D), N},
                                       .out = {r.out_TN, d.A * d.value_dim()},
                                       .lse = r.lse,
                                       .bf16 = bf16_of(stream.device()),
                                       .amax = to.amax,
                                       .quantized = r.written.quantized.data,
                                       .scale = to.scale.scale};
  enqueue(stream, "attention_fwd", args);
  return r;
}

Written attention_backward(Stream& stream, const AttentionDims& d, const Tensor& qkv_TN,
                           const Tensor& cu_seqlens, const AttentionResult& f,
                           const Tensor& dout_TN, const Destination& to, bool qk_last) {
  check_qkv(d, qkv_TN, cu_seqlens);
  MT_SHAPE("attention_backward", dout_TN, {d.B * d.S, d.A * d.value_dim()});
  MT_SHAPE("attention_backward", f.out_TN, {d.B * d.S, d.A * d.value_dim()});
  MT_SHAPE("attention_backward", f.lse, {d.B, d.A, d.S});
  MT_DTYPE("attention_backward", dout_TN, qkv_TN.dtype());
  MT_DTYPE("attention_backward", f.out_TN, qkv_TN.dtype());
  MT_DTYPE("attention_backward", f.lse, DType::f32);
  const int64_t N = qkv_TN.dim(1), N_out = d.A * d.value_dim();
  Written dqkv = Tensor::empty(stream, qkv_TN.shape(), qkv_TN.dtype());
  dqkv.amax = supported(stream.device(), d, to).amax;
  const Tensor dqk_amax = qk_last ? dqkv.amax : Tensor();
  const kernels::AttentionBackward args{.shape = shape_of(stream.device(), d, cu_seqlens),
                                        .q = {heads_from(qkv_TN, 0, d.D), N},
                                        .k = {heads_from(qkv_TN, d.A, d.D), N},
                                        .v = {elements_from(qkv_TN, (d.A + d.G) * d.D), N},
                                        .out = {f.out_TN, N_out},
                                        .dout = {dout_TN, N_out},
                                        .lse = f.lse,
                                        .dq = {heads_from(dqkv.plain, 0, d.D), N},
                                        .dk = {heads_from(dqkv.plain, d.A, d.D), N},
                                        .dv = {elements_from(dqkv.plain, (d.A + d.G) * d.D), N},
                                        .fixed_order = stream.device().fixed_attention_order(),
                                        .bf16 = bf16_of(stream.device()),
                                        .dqk_amax = dqk_amax,
                                        .dv_amax = dqkv.amax};
  enqueue(stream, "attention_bwd", args);
  return dqkv;
}

}  // namespace mtrain::ops
