#include "ops/attention_decode.h"

#include <algorithm>

#include "kernels/attention_decode.h"
#include "ops/attention_views.h"

MT_KERNEL(AttentionDecode)

namespace mtrain::ops {

namespace {
// Fills in what `args` lacks, and launches it.
Tensor decode(Stream& stream, const DecodeDims& d, kernels::AttentionDecode args, int64_t T,
              const Tensor& cache_RN, const Tensor& start_T, const Tensor& end_T) {
  const int64_t rows = cache_RN.dim(0), N_out = d.A * d.value_dim();
  MT_SHAPE("attention_decode", start_T, {T});
  MT_SHAPE("attention_decode", end_T, {T});
  MT_DTYPE("attention_decode", start_T, DType::i32);
  MT_DTYPE("attention_decode", end_T, DType::i32);
  MT_CHECK(d.A % d.G == 0, "attention_decode: {} query heads, {} kv heads", d.A, d.G);
  const int64_t D = std::max(d.D, d.value_dim());
  MT_CHECK(!stream.device().is_cuda() || D <= kernels::kDecodeMaxHeadDim,
           "attention_decode: heads of {} elements, at most {}", D, kernels::kDecodeMaxHeadDim);
  Tensor out_TN = Tensor::empty(stream, {T, N_out}, cache_RN.dtype());
  args.out = {out_TN, N_out};
  args.start_T = start_T, args.end_T = end_T;
  args.T = T, args.rows = rows;
  args.A = d.A, args.G = d.G, args.D = d.D, args.Dv = d.Dv;
  args.window = d.window, args.scale = d.scale, args.cap = d.cap;
  enqueue(stream, "attention_decode", args);
  return out_TN;
}
}  // namespace

Tensor attention_decode(Stream& stream, const DecodeDims& d, const Tensor& qkv_TN,
                        const Tensor& cache_RN, const Tensor& start_T, const Tensor& end_T) {
  const int64_t T = qkv_TN.dim(0), AD = d.A * d.D, GD = d.G * d.D, N_kv = GD + d.G * d.value_dim();
  MT_SHAPE("attention_decode", qkv_TN, {T, AD + N_kv});
  MT_SHAPE("attention_decode", cache_RN, {cache_RN.dim(0), N_kv});
  MT_FLOAT("attention_decode", qkv_TN);
  MT_DTYPE("attention_decode", cache_RN, qkv_TN.dtype());
  kernels::AttentionDecode args{};
  args.q = {qkv_TN, AD + N_kv};
  args.k = {cache_RN, N_kv};
  args.v = {elements_from(cache_RN, GD), N_kv};
  return decode(stream, d, args, T, cache_RN, start_T, end_T);
}

Tensor attention_decode_latent(Stream& stream, const DecodeDims& d, const Tensor& q_TN,
                               const Tensor& cache_RD, const Tensor& start_T, const Tensor& end_T) {
  const int64_t T = q_TN.dim(0);
  MT_CHECK(d.G == 1 && d.value_dim() <= d.D, "attention_decode_latent: {} kv heads, {} of {}", d.G,
           d.value_dim(), d.D);
  MT_SHAPE("attention_decode_latent", q_TN, {T, d.A * d.D});
  MT_SHAPE("attention_decode_latent", cache_RD, {cache_RD.dim(0), d.D});
  MT_FLOAT("attention_decode_latent", q_TN);
  MT_DTYPE("attention_decode_latent", cache_RD, q_TN.dtype());
  kernels::AttentionDecode args{};
  args.q = {q_TN, d.A * d.D};
  args.k = args.v = {cache_RD, d.D};
  return decode(stream, d, args, T, cache_RD, start_T, end_T);
}

}  // namespace mtrain::ops
