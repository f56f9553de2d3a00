// Flash attention (Dao et al. 2022, 2023): softmax(scale q k^T + mask) v without an S x S matrix;
// grouped-query heads. Nothing is rounded between q and out but the inputs themselves: scores,
// probabilities and sums are fp32. q, k, v, out and their gradients are all fp32 or all bf16.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// A (row of tokens) x heads x D view: element (s, b, h, d) is data[(s * B + b) * token_stride + h *
// D + d].
struct HeadView {
  ConstSpan data;
  int64_t token_stride = 0;
};
struct HeadSpan {
  Span data;
  int64_t token_stride = 0;
};

struct AttentionShape {
  int64_t B;        // sequences
  int64_t Sq, Skv;  // query and key rows of each sequence
  int64_t A, G,
      D;  // query heads, kv heads (A % G == 0; query head a reads kv head a / (A / G)), head dim
  bool causal = true;
  int64_t q_start =
      0;  // position of query row 0 minus position of key row 0: row i sees keys j <= i + q_start
  int64_t window = 0;  // sliding window: row i sees keys j > i + q_start - window; 0: no window
  // Optional, int32, n + 1 entries rising from 0 to Sq: a row sees only keys of its own document.
  // Needs B = 1, Sq = Skv.
  ConstSpan cu_seqlens;
  float scale;  // usually 1 / sqrt(D)
};

struct AttentionForward {
  AttentionShape shape;
  HeadView q, k, v;
  HeadSpan out;
  Span lse;  // fp32 (B, A, Sq): log of the softmax sum, kept for backward; a row that sees no key
             // gets -inf and out 0
};

struct AttentionBackward {
  AttentionShape shape;
  HeadView q, k, v, out, dout;
  ConstSpan lse;        // fp32, the forward's
  HeadSpan dq, dk, dv;  // written, not accumulated; must not overlap the inputs
};

namespace cpu {
void run(const AttentionForward&);
void run(const AttentionBackward&);
}  // namespace cpu
namespace cuda {
void run(const AttentionForward&, CUstream_st*);
void run(const AttentionBackward&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
