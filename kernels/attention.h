// Flash attention (Dao et al. 2022, 2023): softmax(scale q k^T + mask) v without an S x S matrix,
// for grouped-query heads. Scores, probabilities and sums are fp32: only the inputs are rounded,
// and where a CPU multiplies bf16 by tiles, and on GPUs, probabilities and the gradients of scores
// before they are multiplied. q, k, v, out and dout have one float type; the forward's out and the
// gradients may be fp32 too.
//
// Keys may also come block by block (Liu et al. 2023, ring attention). The forward of each block
// then writes an fp32 out and lse, and kernels/attention_merge.h merges those of all blocks. The
// backward of each block takes the merged out and lse; the results of all blocks add up to the
// gradients of the whole.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// A view of tokens x heads x D. Element (s, b, h, d) is
// data[(s * B + b) * token_stride + h * D + d].
struct HeadView {
  ConstSpan data;
  int64_t token_stride = 0;
};
struct HeadSpan {
  Span data;
  int64_t token_stride = 0;
};

// Documents packed into one sequence: document d has the rows [begin[d], end[d]). The numbers are
// int32, in increasing order.
struct DocumentRows {
  ConstSpan begin, end;
};

struct AttentionShape {
  int64_t B;        // sequences
  int64_t Sq, Skv;  // query and key rows of each sequence
  int64_t A;        // query heads
  int64_t G;        // kv heads; G divides A, and query head a reads kv head a / (A / G)
  int64_t D;        // head dim
  bool causal = true;
  // The position of query row 0 minus that of key row 0: causal row i sees the keys j <= i +
  // q_start.
  int64_t q_start = 0;
  int64_t window = 0;  // row i sees only keys j > i + q_start - window; 0: no window
  // Optional. Both list the same number of documents, and a row sees only keys of its own document;
  // `causal` then means that a document's last row sees its last key. Documents need B = 1 and
  // q_start = 0.
  DocumentRows q_documents, kv_documents;
  bool document_gaps = false;  // some rows may belong to no document; they see no key
  float scale;                 // usually 1 / sqrt(D)
  float cap = 0;  // scores s = scale q k^T become cap tanh(s / cap), before the mask; 0: they stay
  int64_t lse_stride = 0;    // elements from one head of the lse to the next; 0: Sq
  bool own_kernels = false;  // a GPU does not ask cuDNN
};

struct AttentionForward {
  AttentionShape shape;
  HeadView q, k, v;
  HeadSpan out;
  // fp32 (B, A, Sq): the logarithm of the softmax's sum, kept for backward. A row that sees no key
  // gets -inf, and out 0.
  Span lse;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies where q is bf16
  // The next three are for the 8-bit GEMM that reads out, which then has q's type. All are
  // optional. Only mtrain's own kernels know them: on a GPU they need shape.own_kernels.
  Span amax = {};  // fp32, one element: becomes max(amax, largest finite |out|)
  // Gets what Quantize (kernels/fp8.h) makes of out under the scale (fp32, one element), in f8e4m3
  // or f8e5m2. The tokens of out lie without gaps.
  Span quantized = {};
  ConstSpan scale = {};
};

struct AttentionBackward {
  AttentionShape shape;
  HeadView q, k, v, out, dout;
  ConstSpan lse;                         // the forward's, fp32
  HeadSpan dq, dk, dv;                   // must not overlap the inputs
  bool add_dq = false, add_dkv = false;  // adds to dq, or to dk and dv, instead of overwriting
  // Sums have a fixed order, so that equal calls give equal bits. If false, cuDNN adds to dq in the
  // order in which blocks of keys finish, which is faster and needs less memory; all other kernels
  // ignore this.
  bool fixed_order = true;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies where q is bf16
  // Optional, fp32, one element each, and perhaps the same one: become the larger of themselves and
  // of the largest finite size in dq and dk, or in dv. They are for gradients that have q's type
  // and are not added to; on a GPU they need shape.own_kernels.
  Span dqk_amax = {}, dv_amax = {};
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
