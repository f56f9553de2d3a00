#include "kernels/norm.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"
#include "kernels/cpu/float8_result.h"

namespace mtrain::kernels::cpu {
namespace {

// Returns the number of elements from the first to the last element of a strided operand.
template <class Args>
int64_t extent(const Args& a) {
  const int64_t width = a.heads * a.H;
  const int64_t stride = a.token_stride ? a.token_stride : width;
  MT_CHECK(a.H > 0 && a.heads > 0 && stride >= width,
           "norm: {} heads of {} at a token stride of {}", a.heads, a.H, stride);
  return a.T > 0 ? (a.T - 1) * stride + width : 0;
}

template <class Args>
bool plain(const Args& a) {
  return a.heads == 1 && (!a.token_stride || a.token_stride == a.H);
}

template <class Args>
void check_shared_rows(const char* op, const Args& a) {
  if (!a.sum_T) return;
  check(op, "sum", a.sum_T, a.T, DType::f32);
  MT_CHECK(a.kind == NormKind::rms && a.heads == 1 && a.width >= a.H,
           "{}: sums of {} elements for {} heads of {}", op, a.width, a.heads, a.H);
}

void check_forward(const NormForward& a) {
  const int64_t need = extent(a), rows = a.T * a.heads;
  const DType dtype = a.x_TH.dtype;
  check_holds("norm", "x", a.x_TH, need);
  check_result("norm", "y", a.y_TH, need, dtype, a.scale);
  MT_CHECK(!a.scale || plain(a), "norm: heads are not written in 8 bits");
  check("norm", "w", a.w_H, a.H, dtype);
  if (a.b_H) check("norm", "b", a.b_H, a.H, dtype);
  if (a.rstd_T) check("norm", "rstd", a.rstd_T, rows, DType::f32);
  if (a.mean_T) check("norm", "mean", a.mean_T, rows, DType::f32);
  if (a.amax) check("norm", "amax", a.amax, 1, DType::f32);
  MT_CHECK(a.kind == NormKind::layer || (!a.b_H && !a.mean_T),
           "norm: RMSNorm has no bias and no mean");
  check_shared_rows("norm", a);
  if (!a.residual_TH) return;
  MT_CHECK(!a.sum_T, "norm: the sums of a row with a residual are not known before");
  MT_CHECK(plain(a), "norm: a residual needs contiguous rows");
  check("norm", "residual", a.residual_TH, need, dtype);
  check("norm", "sum", a.sum_TH, need, dtype);
}

void check_backward(const NormBackward& a) {
  const int64_t need = extent(a), rows = a.T * a.heads;
  const DType dtype = a.x_TH.dtype;
  check_holds("norm backward", "x", a.x_TH, need);
  check("norm backward", "dy", a.dy_TH, need, dtype);
  check("norm backward", "dx", a.dx_TH, need, dtype);
  check("norm backward", "w", a.w_H, a.H, dtype);
  check("norm backward", "dw", a.dw_H, a.H, DType::f32);
  check("norm backward", "rstd", a.rstd_T, rows, DType::f32);
  if (a.kind == NormKind::layer) check("norm backward", "mean", a.mean_T, rows, DType::f32);
  if (a.db_H) check("norm backward", "db", a.db_H, a.H, DType::f32);
  if (a.amax) check("norm backward", "amax", a.amax, 1, DType::f32);
  if (a.dresidual_TH) check("norm backward", "dresidual", a.dresidual_TH, need, dtype);
  check_shared_rows("norm backward", a);
  if (!a.quantized_TH) return;
  MT_CHECK(a.scale && plain(a), "norm backward: 8 bits need a scale and contiguous rows");
  check_result("norm backward", "the 8-bit dx", a.quantized_TH, need, dtype, a.scale);
}

void check_sums(const NormSums& a) {
  MT_CHECK(a.H > 0 && a.token_stride >= a.H, "norm sums: rows of {} at a token stride of {}", a.H,
           a.token_stride);
  const int64_t need = a.T > 0 ? (a.T - 1) * a.token_stride + a.H : 0;
  const DType dtype = a.x_TH.dtype;
  check_holds("norm sums", "x", a.x_TH, need);
  check("norm sums", "sum", a.sum_T, a.T, DType::f32);
  if (!a.dy_TH) return;
  check("norm sums", "dy", a.dy_TH, need, dtype);
  check("norm sums", "w", a.w_H, a.H, dtype);
  check("norm sums", "rstd", a.rstd_T, a.T, DType::f32);
}

bool written_in_8_bits(const NormForward& a) {
  if (!a.scale) return false;
  const FloatResult y(a.y_TH, a.T * a.H, a.x_TH.dtype, a.scale);
  NormForward args = a;
  args.y_TH = y.get(), args.scale = {}, args.amax = {};
  run(args);
  y.quantize(a.T, a.H, a.amax);
  return true;
}

bool written_in_8_bits(const NormBackward& a) {
  if (!a.quantized_TH) return false;
  NormBackward args = a;
  args.quantized_TH = {}, args.scale = {}, args.amax = {};
  run(args);
  run(Quantize{.x_TN = a.dx_TH,
               .scale = a.scale,
               .y_TN = a.quantized_TH,
               .amax = a.amax,
               .T = a.T,
               .N = a.H});
  return true;
}

}  // namespace

MT_DISPATCH_UNLESS(NormForward, check_forward, written_in_8_bits)
MT_DISPATCH_UNLESS(NormBackward, check_backward, written_in_8_bits)
MT_DISPATCH(NormSums, check_sums)

}  // namespace mtrain::kernels::cpu
