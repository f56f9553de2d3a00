// RMSNorm and LayerNorm of rows and of heads; kernels/norm.h has the rules.
#pragma once
#include "kernels/norm.h"
#include "ops/operand.h"
#include "ops/operation.h"

namespace mtrain::ops {

struct NormWeights {
  NormKind kind;
  Tensor w_H, b_H;  // b_H: optional
  float eps;
  bool plus_one = false;  // multiplies by 1 + w
};
struct NormResult {
  Tensor sum_TH;          // the norm's input: x, or x + residual if one was given
  Written y_TH;           // plain or quantized
  Tensor rstd_T, mean_T;  // fp32; mean_T only for layer norm
};
NormResult norm(Stream& stream, const NormWeights& w, const Tensor& x_TH,
                const Tensor& residual_TH = {}, const Destination& to = {});
// Returns dL/dx + dresidual_TH (optional), plain, and quantized beside it if `to` asks for it. Adds
// to dw_H and db_H, which are fp32; db_H is optional.
Written norm_backward(Stream& stream, const NormWeights& w, const NormResult& forward,
                      const Tensor& dy_TH, const Tensor& dresidual_TH, const Tensor& dw_H,
                      const Tensor& db_H, const Destination& to = {});
struct HeadRange {
  int64_t first_head, heads, D;  // heads of D elements each, in every token's row
  bool as_one = false;           // one norm over all of these heads, with a weight of heads * D

  int64_t rows() const { return as_one ? 1 : heads; }  // norms of each token
  int64_t width() const { return as_one ? heads * D : D; }
};
// Rows of a norm over heads that are distributed over ranks.
struct SharedRows {
  Tensor sum_T;  // the result of head_norm_sums(), summed over ranks; absent: rows are not shared
  int64_t width = 0;  // elements of a row on all ranks
};
// Set sum_T (fp32) to the sums over a range's heads that head_norm() and head_norm_backward() need:
// of their squares, and of dy w x rstd.
void head_norm_sums(Stream& stream, const Tensor& in_TN, HeadRange range, const Tensor& sum_T);
void head_norm_backward_sums(Stream& stream, const NormWeights& w, const Tensor& in_TN,
                             const Tensor& rstd, const Tensor& d_TN, HeadRange range,
                             const Tensor& sum_T);
// Normalizes each head of the range (RMS norm) from in_TN into the same heads of out_TN, whose
// other columns stay unchanged. Returns rstd (fp32, T * range.rows()).
Tensor head_norm(Stream& stream, const NormWeights& w, const Tensor& in_TN, const Tensor& out_TN,
                 HeadRange range, const SharedRows& shared = {});
// Replaces the gradient of head_norm's output by the gradient of its input, in the range's heads of
// d_TN, which is plain. Adds to dw (fp32). Enters the maximum of these heads into d_TN.amax, if it
// is present.
void head_norm_backward(Stream& stream, const NormWeights& w, const Tensor& in_TN,
                        const Tensor& rstd, const Written& d_TN, HeadRange range,
                        const Tensor& dw_D, const SharedRows& shared = {});

}  // namespace mtrain::ops
