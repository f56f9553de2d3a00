#include "ops/attention_decode.h"

#include "kernels/attention_decode.h"
#include "ops/attention_views.h"

MT_KERNEL(AttentionDecode)

namespace mtrain::ops {

Tensor attention_decode(Stream& stream, const DecodeDims& d, const Tensor& qkv_TN,
                        const Tensor& cache_RN, const Tensor& start_T, const Tensor& end_T) {
  const int64_t T = qkv_TN.dim(0), rows = cache_RN.dim(0), AD = d.A * d.D, GD = d.G * d.D;
  const int64_t N_out = d.A * d.value_dim(), N_kv = GD + d.G * d.value_dim();
  MT_SHAPE("attention_decode", qkv_TN, {T, AD + N_kv});
  MT_SHAPE("attention_decode", cache_RN, {rows, N_kv});
  MT_SHAPE("attention_decode", start_T, {T});
  MT_SHAPE("attention_decode", end_T, {T});
  MT_FLOAT("attention_decode", qkv_TN);
  MT_DTYPE("attention_decode", cache_RN, qkv_TN.dtype());
  MT_DTYPE("attention_decode", start_T, DType::i32);
  MT_DTYPE("attention_decode", end_T, DType::i32);
  MT_CHECK(d.A % d.G == 0, "attention_decode: {} query heads, {} kv heads", d.A, d.G);
  MT_CHECK(!stream.device().is_cuda() || d.value_dim() == d.D,
           "attention_decode: latent attention does not run on CUDA yet");
  MT_CHECK(!stream.device().is_cuda() || d.D <= kernels::kDecodeMaxHeadDim,
           "attention_decode: heads of {} elements, at most {}", d.D, kernels::kDecodeMaxHeadDim);
  Tensor out_TN = Tensor::empty(stream, {T, N_out}, qkv_TN.dtype());
  enqueue(stream, "attention_decode",
          kernels::AttentionDecode{.q = {qkv_TN, AD + N_kv},
                                   .k = {cache_RN, N_kv},
                                   .v = {elements_from(cache_RN, GD), N_kv},
                                   .out = {out_TN, N_out},
                                   .start_T = start_T,
                                   .end_T = end_T,
                                   .T = T,
                                   .rows = rows,
                                   .A = d.A,
                                   .G = d.G,
                                   .D = d.D,
                                   .window = d.window,
                                   .scale = d.scale,
                                   .cap = d.cap,
                                   .Dv = d.Dv});
  return out_TN;
}

}  // namespace mtrain::ops
