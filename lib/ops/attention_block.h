// Attention to a block of keys, for context parallelism; kernels/attention.h has the math.
#pragma once
#include "ops/attention.h"
#include "ops/operation.h"

namespace mtrain::ops {

struct Rows {
  int64_t begin, end;
};
// Document i has the rows [begin[i], end[i]) (int32). Rows that belong to no document take no part.
struct Documents {
  Tensor begin, end;
};
// The queries at the positions `q` attend to the keys at the positions `kv`. Callers pass full
// tensors; rows outside of these positions are neither read nor written. With `causal`, the last of
// these queries attends to the last of these keys, and the same holds within each document.
struct AttentionBlock {
  int64_t B;
  Rows q, kv;
  int64_t A, G, D;
  bool causal = false;
  float scale;
  // Optional; they need B = 1. Their rows count from q.begin and kv.begin.
  Documents q_documents, kv_documents;
  int64_t window = 0;    // 0: none; else a query attends only to the last `window` of its keys
  int64_t out_head = 0;  // the A heads of out and dout begin with this head of their rows
  float cap = 0;         // as in AttentionDims
  int64_t Dv = 0;        // elements of a head of v, out and dout; 0: D

  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
};
// Some heads of every token's row, starting at head `first` of those that begin with the element
// `column`.
struct Heads {
  Tensor x_TN;
  int64_t first = 0, column = 0;
};
// Writes the rows block.q of into.out_TN (fp32 or the operands' dtype) and of into.lse (B, A,
// positions). A query that attends to no key of the block gets out 0 and lse -inf.
void attention_block(Stream& stream, const AttentionBlock& block, const Heads& q, const Heads& k,
                     const Heads& v, const AttentionResult& into);
// Merges the result of a block into that of the blocks before it. The block's positions are the
// positions of `into` that start at `first`. into.out_TN is fp32; the caller casts it once, when
// all blocks are merged.
void attention_merge(Stream& stream, const AttentionResult& block, const AttentionResult& into,
                     int64_t first);
struct AttentionGrads {
  Heads dq, dk, dv;      // fp32 or the operands' dtype
  bool add_dq, add_dkv;  // add to dq, and to dk and dv, instead of overwriting their rows
};
// Computes the block's share of the gradients. `merged` is the result of all blocks, cast to the
// operands' dtype.
void attention_block_backward(Stream& stream, const AttentionBlock& block, const Heads& q,
                              const Heads& k, const Heads& v, const AttentionResult& merged,
                              const Tensor& dout_TN, const AttentionGrads& grads);

}  // namespace mtrain::ops
