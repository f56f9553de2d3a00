#include "ops/latent_heads.h"

#include "kernels/latent_heads.h"
#include "ops/enqueue.h"

MT_KERNEL(LatentHeadsForward)
MT_KERNEL(LatentHeadsBackward)

namespace mtrain::ops {

Tensor latent_heads(Stream& stream, const LatentDims& d, const Tensor& q_TN, const Tensor& kv_TN,
                    const Tensor& shared_TR) {
  const int64_t T = q_TN.dim(0);
  MT_FLOAT("latent_heads", q_TN);
  MT_SHAPE("latent_heads", q_TN, {T, d.A * d.D()});
  MT_SHAPE("latent_heads", kv_TN, {T, d.A * (d.N + d.V)});
  MT_SHAPE("latent_heads", shared_TR, {T, d.R});
  MT_DTYPE("latent_heads", kv_TN, q_TN.dtype());
  MT_DTYPE("latent_heads", shared_TR, q_TN.dtype());
  Tensor qkv_TN = Tensor::empty(stream, {T, d.qkv_width()}, q_TN.dtype());
  enqueue(stream, "latent_heads_fwd",
          kernels::LatentHeadsForward{.q_TN = q_TN,
                                      .kv_TN = kv_TN,
                                      .shared_TR = shared_TR,
                                      .qkv_TN = qkv_TN,
                                      .T = T,
                                      .A = d.A,
                                      .N = d.N,
                                      .R = d.R,
                                      .V = d.V});
  return qkv_TN;
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

}  // namespace mtrain::ops
