#include "ops/latent_heads.h"

#include "kernels/latent_heads.h"
#include "ops/enqueue.h"

MT_KERNEL(LatentHeadsForward)
MT_KERNEL(LatentHeadsBackward)
MT_KERNEL(LatentQueries)
MT_KERNEL(LatentValues)

namespace mtrain::ops {

namespace {
// `q_TN` may be absent.
Tensor join_heads(Stream& stream, const LatentDims& d, const Tensor& q_TN, const Tensor& kv_TN,
                  const Tensor& shared_TR) {
  const int64_t T = kv_TN.dim(0);
  MT_FLOAT("latent_heads", kv_TN);
  MT_SHAPE("latent_heads", kv_TN, {T, d.A * (d.N + d.V)});
  MT_SHAPE("latent_heads", shared_TR, {T, d.R});
  MT_DTYPE("latent_heads", shared_TR, kv_TN.dtype());
  const int64_t width = d.qkv_width() - (q_TN ? 0 : d.A * d.D());
  Tensor rows_TN = Tensor::empty(stream, {T, width}, kv_TN.dtype());
  enqueue(stream, "latent_heads_fwd",
          kernels::LatentHeadsForward{.q_TN = q_TN ? ConstSpan(q_TN) : ConstSpan(),
                                      .kv_TN = kv_TN,
                                      .shared_TR = shared_TR,
                                      .qkv_TN = rows_TN,
                                      .T = T,
                                      .A = d.A,
                                      .N = d.N,
                                      .R = d.R,
                                      .V = d.V});
  return rows_TN;
}
}  // namespace

Tensor latent_heads(Stream& stream, const LatentDims& d, const Tensor& q_TN, const Tensor& kv_TN,
                    const Tensor& shared_TR) {
  MT_SHAPE("latent_heads", q_TN, {kv_TN.dim(0), d.A * d.D()});
  MT_DTYPE("latent_heads", q_TN, kv_TN.dtype());
  return join_heads(stream, d, q_TN, kv_TN, shared_TR);
}

Tensor latent_keys_values(Stream& stream, const LatentDims& d, const Tensor& kv_TN,
                          const Tensor& shared_TR) {
  return join_heads(stream, d, {}, kv_TN, shared_TR);
}

LatentGradients latent_heads_backward(Stream& stream, const LatentDims& d, const Tensor& dqkv_TN) {
  const int64_t T = dqkv_TN.dim(0);
  const DType dtype = dqkv_TN.dtype();
  MT_FLOAT("latent_heads_backward", dqkv_TN);
  MT_SHAPE("latent_heads_backward", dqkv_TN, {T, d.qkv_width()});
  LatentGradients g{Tensor::empty(stream, {T, d.A * d.D()}, dtype),
                    Tensor::empty(stream, {T, d.A * (d.N + d.V)}, dtype),
                    Tensor::empty(stream, {T, d.R}, dtype)};
  enqueue(stream, "latent_heads_bwd",
          kernels::LatentHeadsBackward{.dqkv_TN = dqkv_TN,
                                       .dq_TN = g.dq_TN,
                                       .dkv_TN = g.dkv_TN,
                                       .dshared_TR = g.dshared_TR,
                                       .T = T,
                                       .A = d.A,
                                       .N = d.N,
                                       .R = d.R,
                                       .V = d.V});
  return g;
}

Tensor latent_queries(Stream& stream, const LatentDims& d, const Tensor& q_TN,
                      const Tensor& weight_NC) {
  const int64_t T = q_TN.dim(0), C = weight_NC.dim(1);
  MT_FLOAT("latent_queries", q_TN);
  MT_SHAPE("latent_queries", q_TN, {T, d.A * d.D()});
  MT_SHAPE("latent_queries", weight_NC, {d.A * (d.N + d.V), C});
  MT_DTYPE("latent_queries", weight_NC, q_TN.dtype());
  Tensor out_TN = Tensor::empty(stream, {T, d.A * (C + d.R)}, q_TN.dtype());
  enqueue(stream, "latent_queries",
          kernels::LatentQueries{.q_TN = q_TN,
                                 .weight_NC = weight_NC,
                                 .out_TN = out_TN,
                                 .T = T,
                                 .A = d.A,
                                 .N = d.N,
                                 .R = d.R,
                                 .V = d.V,
                                 .C = C});
  return out_TN;
}

Tensor latent_values(Stream& stream, const LatentDims& d, const Tensor& x_TN,
                     const Tensor& weight_NC) {
  const int64_t T = x_TN.dim(0), C = weight_NC.dim(1);
  MT_FLOAT("latent_values", x_TN);
  MT_SHAPE("latent_values", x_TN, {T, d.A * C});
  MT_SHAPE("latent_values", weight_NC, {d.A * (d.N + d.V), C});
  MT_DTYPE("latent_values", weight_NC, x_TN.dtype());
  Tensor out_TN = Tensor::empty(stream, {T, d.A * d.V}, x_TN.dtype());
  enqueue(stream, "latent_values",
          kernels::LatentValues{.x_TN = x_TN,
                                .weight_NC = weight_NC,
                                .out_TN = out_TN,
                                .T = T,
                                .A = d.A,
                                .N = d.N,
                                .V = d.V,
                                .C = C});
  return out_TN;
}

}  // namespace mtrain::ops
