// RMSNorm (Zhang & Sennrich 2019) and LayerNorm over the last dimension, optionally fused with the
// residual add before it. Activations and weights are all of one float type; statistics are fp32,
// and weight gradients accumulate in fp32.
//
// The rows of an RMSNorm may be split over ranks, each with a part of the elements. NormSums
// computes the sums over a rank's part, and the norm takes the total over the ranks.
#pragma once
#include "base/norm_kind.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// Each of T tokens has `heads` rows; row (t, h) starts at element t * token_stride + h * H of x, y
// and their gradients. heads = 1 and token_stride = H is the plain (T, H) case; the per-head norms
// of q and k use other values.
struct NormForward {
  NormKind kind = NormKind::rms;
  ConstSpan x_TH;
  ConstSpan residual_TH;  // optional, plain case only: the norm's input is x + residual
  Span sum_TH;            // gets x + residual if residual_TH is given
  ConstSpan w_H, b_H;     // b_H: layer norm only, optional
  bool plus_one = false;  // multiplies by 1 + w (added in fp32) instead of w
  // May be x_TH. If `scale` is given, y_TH is f8e4m3 or f8e5m2: the float result, converted as by
  // Quantize (kernels/fp8.h) with this scale. Plain case only.
  Span y_TH;
  ConstSpan scale;      // optional, fp32, one element
  Span rstd_T, mean_T;  // for backward; optional, fp32, one a row; mean_T: layer norm only
  Span amax;  // optional, fp32, one element: becomes max(amax, largest finite |y|), of y as a float
  int64_t T, H;
  int64_t heads = 1, token_stride = 0;  // a stride of 0 means heads * H
  float eps = 1e-5f;
  int64_t sm_margin = 0;  // multiprocessors of a GPU reserved for other work
  // Optional, RMSNorm of one head without a residual: the sums of x^2 (fp32, one a row) over all
  // `width` elements of a row; x has H of them.
  ConstSpan sum_T;
  int64_t width = 0;
};

struct NormBackward {
  NormKind kind = NormKind::rms;
  ConstSpan dy_TH, x_TH;  // x: the norm's input; if the add was fused, the forward's sum
  ConstSpan w_H, rstd_T, mean_T;
  bool plus_one = false;   // as in the forward
  ConstSpan dresidual_TH;  // optional: dx = dresidual + gradient through the norm
  Span dx_TH;              // may be dy_TH or dresidual_TH
  Span dw_H, db_H;         // fp32, added to; db_H is optional
  Span amax;               // optional, fp32, one element: becomes max(amax, largest finite |dx|)
  // Optional, plain case only: gets dx in f8e4m3 or f8e5m2, converted as by Quantize
  // (kernels/fp8.h) with the scale (fp32, one element).
  Span quantized_TH;
  ConstSpan scale;
  int64_t T, H;
  int64_t heads = 1, token_stride = 0;
  int64_t sm_margin = 0;  // as in NormForward; changes the order of sums over tokens on a GPU
  // Optional, as in NormForward: the sums of dy w x rstd.
  ConstSpan sum_T;
  int64_t width = 0;
};

// Sums over H elements of each of T rows, which start token_stride elements apart. The sums are of
// x^2, or of dy w x rstd if dy, w and rstd are given.
struct NormSums {
  ConstSpan x_TH;
  ConstSpan dy_TH, w_H, rstd_T;
  bool plus_one = false;
  Span sum_T;  // fp32
  int64_t T, H, token_stride;
};

namespace cpu {
void run(const NormForward&);
void run(const NormBackward&);
void run(const NormSums&);
}  // namespace cpu
namespace cuda {
void run(const NormForward&, CUstream_st*);
void run(const NormBackward&, CUstream_st*);
void run(const NormSums&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
