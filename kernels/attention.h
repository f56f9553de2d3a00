// Flash attention (Dao et al. 2022, 2023): softmax(scale q k^T + mask) v without an S x S matrix,
// for grouped-query heads. Scores, probabilities and sums are fp32. Only the inputs are rounded,
// with one exception: on GPUs, and on a CPU that multiplies bf16 by tiles, probabilities and the
// gradients of scores are rounded before they are multiplied. q, k, v, out and dout have one float
// type; the forward's out and the gradients may be fp32 too.
//
// Keys may also arrive block by block (Liu et al. 2023, ring attention). The forward of each block
// then writes an fp32 out and lse, and kernels/attention_merge.h merges those of all blocks. The
// backward of each block takes the merged out and lse; the results of all blocks add up to the full
// gradients.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// A view of tokens x heads x D, where D is that of the operand. Element (s, b, h, d) is
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
  int64_t D;        // head dim of q and k
  int64_t Dv = 0;   // head dim of v and out; 0: D
  bool causal = true;
  // The position of query row 0 minus that of key row 0: causal row i attends to the keys j <= i +
  // q_start.
  int64_t q_start = 0;
  int64_t window = 0;  // row i attends only to keys j > i + q_start - window; 0: no window
  // Optional. Both list the same number of documents, and a row attends only to keys of its own
  // document. `causal` then means that a document's last row attends to its last key. Documents
  // need B = 1 and q_start = 0.
  DocumentRows q_documents, kv_documents;
  bool document_gaps = false;  // some rows may belong to no document; they attend to no key
  // No document has more rows, which saves idle blocks of a GPU; 0: a document may have all rows.
  int64_t longest_document = 0;
  float scale;    // usually 1 / sqrt(D)
  float cap = 0;  // scores s = scale q k^T become cap tanh(s / cap), before the mask; 0: no cap
  int64_t lse_stride = 0;    // elements from one head of the lse to the next; 0: Sq
  bool own_kernels = false;  // a GPU does not use cuDNN

  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
};

struct AttentionForward {
  AttentionShape shape;
  HeadView q, k, v;
  HeadSpan out;
  // fp32 (B, A, Sq): the logarithm of the softmax's sum, kept for backward. A row that attends to
  // no key gets -inf, and out 0.
  Span lse;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies if q is bf16
  // The next three are for the 8-bit GEMM that reads out, which then has q's type. All are
  // optional. Only mtrain's own kernels support them: on a GPU they need shape.own_kernels.
  Span amax = {};  // fp32, one element: becomes max(amax, largest finite |out|)
  // Gets out in f8e4m3 or f8e5m2, converted as by Quantize (kernels/fp8.h) with the scale (fp32,
  // one element). The tokens of out are contiguous.
  Span quantized = {};
  ConstSpan scale = {};
};

struct AttentionBackward {
  AttentionShape shape;
  HeadView q, k, v, out, dout;
  ConstSpan lse;                         // the forward's, fp32
  HeadSpan dq, dk, dv;                   // must not overlap the inputs
  bool add_dq = false, add_dkv = false;  // adds to dq, or to dk and dv, instead of overwriting
  // Sums have a fixed order: equal calls give equal bits. If false, cuDNN adds to dq in the order
  // in which blocks of keys finish, which is faster and needs less memory. All other kernels ignore
  // this.
  bool fixed_order = true;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies if q is bf16
  // Optional, fp32, one element each; both may be the same element. Each becomes the maximum of
  // itself and the largest finite absolute value in dq and dk, or in dv. They need gradients that
  // have q's type and are not added to; on a GPU they also need shape.own_kernels.
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
