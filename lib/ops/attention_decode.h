// Attention to a cache of keys and values, for generation.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

struct DecodeDims {
  int64_t A, G, D;
  int64_t window = 0;  // 0: none
  float scale;
  float cap = 0;   // as in AttentionDims
  int64_t Dv = 0;  // elements of a head of v; 0: D

  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
};
// Returns (T, A * Dv). The queries of row t of qkv_TN attend to the rows [start_T[t], end_T[t]) of
// the cache (int32), or to the last `window` of them. The row's keys and values are not read.
// start_T[t] is the row of its sequence's position 0. A row of the cache, of G (D + Dv) elements,
// has its key heads and then its value heads.
Tensor attention_decode(Stream& stream, const DecodeDims& dims, const Tensor& qkv_TN,
                        const Tensor& cache_RN, const Tensor& start_T, const Tensor& end_T);

// The same for latent attention, with A query heads and one shared head of keys: a row of the
// cache, of D elements, is a key, and its first Dv elements are the value. The rows of q_TN have A
// D elements. `dims` has G = 1.
Tensor attention_decode_latent(Stream& stream, const DecodeDims& dims, const Tensor& q_TN,
                               const Tensor& cache_RD, const Tensor& start_T, const Tensor& end_T);

}  // namespace mtrain::ops
