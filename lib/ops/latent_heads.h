// The heads of latent attention; kernels/latent_heads.h has the layouts.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

struct LatentDims {
  int64_t A;        // heads
  int64_t N, R, V;  // elements of a key of its head alone, those that heads share, and of a value

  int64_t D() const { return N + R; }
  int64_t qkv_width() const { return A * (2 * D() + V); }
};
// Returns the core's input (T, A (2 D + V)) from q (T, A D), kv (T, A (N + V)) and the elements
// that all keys of a token share.
Tensor latent_heads(Stream& stream, const LatentDims& dims, const Tensor& q_TN, const Tensor& kv_TN,
                    const Tensor& shared_TR);
// Returns the keys and values alone (T, A (D + V)).
Tensor latent_keys_values(Stream& stream, const LatentDims& dims, const Tensor& kv_TN,
                          const Tensor& shared_TR);
struct LatentGradients {
  Tensor dq_TN, dkv_TN, dshared_TR;
};
LatentGradients latent_heads_backward(Stream& stream, const LatentDims& dims,
                                      const Tensor& dqkv_TN);

// Returns queries that attend to latents (T, A (C + R)), from q (T, A D) and the weight (A (N + V),
// C) that expands a latent of C elements.
Tensor latent_queries(Stream& stream, const LatentDims& dims, const Tensor& q_TN,
                      const Tensor& weight_NC);
// Returns values (T, A V) from weighted sums of latents (T, A C).
Tensor latent_values(Stream& stream, const LatentDims& dims, const Tensor& x_TN,
                     const Tensor& weight_NC);

}  // namespace mtrain::ops
