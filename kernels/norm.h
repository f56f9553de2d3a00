// RMSNorm (Zhang & Sennrich 2019) and LayerNorm over the last dimension, optionally fused with the
// residual add before it. fp32 statistics; activations and weights in fp32 or bf16 (all the same),
// weight gradients accumulate in fp32.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

enum class NormKind { rms, layer };

// Rows: T tokens x `heads` rows each; row (t, h) starts at t * token_stride + h * H of x, y and
// their gradients. heads = 1 and token_stride = H is the plain (T, H) case; per-head norms of q and
// k use the others.
struct NormForward {
  NormKind kind = NormKind::rms;
  ConstSpan x_TH;
  ConstSpan
      residual_TH;     // optional: x := x + residual before the norm, and the sum is kept in sum_TH
  Span sum_TH;         // written where residual_TH is given (plain case only)
  ConstSpan w_H, b_H;  // b_H: layer norm only, optional
  Span y_TH;           // may be x_TH
  Span rstd_T,
      mean_T;  // fp32, one per row, kept for backward; mean_T: layer norm only. Both optional
  int64_t T, H;
  int64_t heads = 1, token_stride = 0;  // 0: heads * H
  float eps = 1e-5f;
  int64_t sm_margin = 0;  // multiprocessors of a GPU that are left to other work
};

struct NormBackward {
  NormKind kind = NormKind::rms;
  ConstSpan dy_TH, x_TH;  // x: the norm's input (the sum, where fused)
  ConstSpan w_H, rstd_T, mean_T;
  ConstSpan dresidual_TH;  // optional: dx = dresidual + gradient through the norm
  Span dx_TH;              // may be dy_TH or dresidual_TH
  Span dw_H, db_H;         // fp32, accumulated into; db_H optional
  int64_t T, H;
  int64_t heads = 1, token_stride = 0;
  int64_t sm_margin = 0;  // as in NormForward; sums over tokens get another order by it
};

namespace cpu {
void run(const NormForward&);
void run(const NormBackward&);
}  // namespace cpu
namespace cuda {
void run(const NormForward&, CUstream_st*);
void run(const NormBackward&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
