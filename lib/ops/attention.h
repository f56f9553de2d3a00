// Attention of full sequences; kernels/attention.h has the rules.
#pragma once
#include "ops/operand.h"
#include "ops/operation.h"

namespace mtrain::ops {

struct AttentionDims {
  int64_t B, S, A, G, D;  // D: elements of a head of q and k
  bool causal = true;
  int64_t window = 0;  // 0: none
  float scale;
  float cap = 0;                 // scores s become cap tanh(s / cap); 0: no cap
  int64_t longest_document = 0;  // no packed document is longer; 0: S
  int64_t Dv = 0;                // elements of a head of v; 0: D

  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
  int64_t qkv_width() const { return (A + G) * D + G * value_dim(); }
};
struct AttentionResult {
  Tensor out_TN;         // (T, A * Dv)
  Tensor lse;            // fp32 (B, A, S)
  Written written = {};  // out_TN in all forms; only of attention() with a destination
};
// qkv_TN is (T, (A + G) D + G Dv): all query heads, then the key heads, then the value heads. The
// optional cu_seqlens (int32) holds the boundaries of packed documents, from 0 to S; it needs B
// = 1.
AttentionResult attention(Stream& stream, const AttentionDims& dims, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const Destination& to = {});
// Returns dL/dqkv, plain. `qk_last`: no kernel changes the gradients of q and k later; otherwise
// that kernel enters their maximum. Where cuDNN may compute attention, both operations ignore `to`.
Written attention_backward(Stream& stream, const AttentionDims& dims, const Tensor& qkv_TN,
                           const Tensor& cu_seqlens, const AttentionResult& forward,
                           const Tensor& dout_TN, const Destination& to = {}, bool qk_last = true);

}  // namespace mtrain::ops
