#include "ops/norm.h"

#include "ops/enqueue.h"

MT_KERNEL(NormForward)
MT_KERNEL(NormBackward)
MT_KERNEL(NormSums)

namespace mtrain::ops {

NormResult norm(Stream& stream, const NormWeights& w, const Tensor& x_TH, const Tensor& residual_TH,
                const Destination& to) {
  const int64_t T = x_TH.dim(0), H = x_TH.dim(1);
  MT_FLOAT("norm", x_TH);
  MT_SHAPE("norm", w.w_H, {H});
  MT_DTYPE("norm", w.w_H, x_TH.dtype());
  if (w.b_H) {
    MT_SHAPE("norm", w.b_H, {H});
    MT_DTYPE("norm", w.b_H, x_TH.dtype());
  }
  if (residual_TH) {
    MT_SHAPE("norm", residual_TH, {T, H});
    MT_DTYPE("norm", residual_TH, x_TH.dtype());
  }
  NormResult r;
  r.sum_TH = residual_TH ? Tensor::empty(stream, {T, H}, x_TH.dtype()) : x_TH;
  r.y_TH = result_alone(stream, {T, H}, x_TH.dtype(), to);
  r.rstd_T = Tensor::empty(stream, {T}, DType::f32);
  if (w.kind == NormKind::layer) r.mean_T = Tensor::empty(stream, {T}, DType::f32);
  kernels::NormForward args{.kind = w.kind, .x_TH = x_TH, .residual_TH = residual_TH};
  if (residual_TH) args.sum_TH = r.sum_TH;
  args.w_H = w.w_H, args.b_H = w.b_H, args.plus_one = w.plus_one;
  args.y_TH = r.y_TH.data(), args.rstd_T = r.rstd_T, args.mean_T = r.mean_T;
  args.scale = to.scale.scale, args.amax = to.amax;
  args.T = T, args.H = H, args.eps = w.eps, args.sm_margin = stream.device().norm_sm_margin();
  enqueue(stream, "norm_fwd", args);
  return r;
}

Written norm_backward(Stream& stream, const NormWeights& w, const NormResult& f,
                      const Tensor& dy_TH, const Tensor& dresidual_TH, const Tensor& dw_H,
                      const Tensor& db_H, const Destination& to) {
  const int64_t T = dy_TH.dim(0), H = dy_TH.dim(1);
  MT_SHAPE("norm_backward", f.sum_TH, {T, H});
  MT_SHAPE("norm_backward", dw_H, {H});
  MT_FLOAT("norm_backward", dy_TH);
  MT_DTYPE("norm_backward", f.sum_TH, dy_TH.dtype());
  MT_DTYPE("norm_backward", w.w_H, dy_TH.dtype());
  MT_DTYPE("norm_backward", dw_H, DType::f32);
  if (db_H) {
    MT_SHAPE("norm_backward", db_H, {H});
    MT_DTYPE("norm_backward", db_H, DType::f32);
  }
  if (dresidual_TH) {
    MT_SHAPE("norm_backward", dresidual_TH, {T, H});
    MT_DTYPE("norm_backward", dresidual_TH, dy_TH.dtype());
  }
  const Written dx = result_beside(stream, {T, H}, dy_TH.dtype(), to);
  kernels::NormBackward args{.kind = w.kind,
                             .dy_TH = dy_TH,
                             .x_TH = f.sum_TH,
                             .w_H = w.w_H,
                             .rstd_T = f.rstd_T,
                             .mean_T = f.mean_T,
                             .plus_one = w.plus_one,
                             .dresidual_TH = dresidual_TH,
                             .dx_TH = dx.plain,
                             .dw_H = dw_H,
                             .db_H = db_H,
                             .amax = to.amax,
                             .quantized_TH = dx.quantized.data,
                             .scale = to.scale.scale,
                             .T = T,
                             .H = H,
                             .sm_margin = stream.device().norm_sm_margin()};
  enqueue(stream, "norm_bwd", args);
  return dx;
}

namespace {
// Returns the elements, starting at the range's first head of the first token. The kernels reach
// the heads of other tokens by the token stride.
Span head_part(const Tensor& x_TN, HeadRange range) {
  return elements_from(x_TN, range.first_head * range.D);
}
}  // namespace

void head_norm_sums(Stream& stream, const Tensor& in_TN, HeadRange range, const Tensor& sum_T) {
  MT_SHAPE("head_norm_sums", sum_T, {in_TN.dim(0)});
  MT_DTYPE("head_norm_sums", sum_T, DType::f32);
  MT_FLOAT("head_norm_sums", in_TN);
  kernels::NormSums args{.x_TH = head_part(in_TN, range)};
  args.sum_T = sum_T, args.T = in_TN.dim(0), args.H = range.heads * range.D,
  args.token_stride = in_TN.dim(1);
  enqueue(stream, "head_norm_sums", args);
}

void head_norm_backward_sums(Stream& stream, const NormWeights& w, const Tensor& in_TN,
                             const Tensor& rstd, const Tensor& d_TN, HeadRange range,
                             const Tensor& sum_T) {
  MT_SHAPE("head_norm_backward_sums", sum_T, {in_TN.dim(0)});
  MT_SHAPE("head_norm_backward_sums", rstd, {in_TN.dim(0)});
  MT_SHAPE("head_norm_backward_sums", d_TN, {in_TN.dim(0), in_TN.dim(1)});
  MT_SHAPE("head_norm_backward_sums", w.w_H, {range.heads * range.D});
  MT_DTYPE("head_norm_backward_sums", w.w_H, in_TN.dtype());
  MT_DTYPE("head_norm_backward_sums", d_TN, in_TN.dtype());
  MT_DTYPE("head_norm_backward_sums", sum_T, DType::f32);
  MT_FLOAT("head_norm_backward_sums", in_TN);
  enqueue(stream, "head_norm_bwd_sums",
          kernels::NormSums{.x_TH = head_part(in_TN, range),
                            .dy_TH = head_part(d_TN, range),
                            .w_H = w.w_H,
                            .rstd_T = rstd,
                            .plus_one = w.plus_one,
                            .sum_T = sum_T,
                            .T = in_TN.dim(0),
                            .H = range.heads * range.D,
                            .token_stride = in_TN.dim(1)});
}

Tensor head_norm(Stream& stream, const NormWeights& w, const Tensor& in_TN, const Tensor& out_TN,
                 HeadRange range, const SharedRows& shared) {
  const int64_t T = in_TN.dim(0);
  MT_SHAPE("head_norm", w.w_H, {range.width()});
  MT_SHAPE("head_norm", out_TN, {T, in_TN.dim(1)});
  MT_FLOAT("head_norm", in_TN);
  MT_DTYPE("head_norm", w.w_H, in_TN.dtype());
  MT_DTYPE("head_norm", out_TN, in_TN.dtype());
  if (shared.sum_T) {
    MT_SHAPE("head_norm", shared.sum_T, {T});
  }
  Tensor rstd = Tensor::empty(stream, {T * range.rows()}, DType::f32);
  kernels::NormForward args{.kind = NormKind::rms, .x_TH = head_part(in_TN, range)};
  args.w_H = w.w_H, args.plus_one = w.plus_one;
  args.y_TH = head_part(out_TN, range), args.rstd_T = rstd;
  // Heads before the range may not have been written yet.
  if (range.first_head > 0) args.y_TH = partly_written(args.y_TH);
  args.T = T, args.H = range.width(), args.heads = range.rows(), args.token_stride = in_TN.dim(1),
  args.eps = w.eps, args.sm_margin = stream.device().norm_sm_margin();
  args.sum_T = shared.sum_T, args.width = shared.width;
  enqueue(stream, "head_norm_fwd", args);
  return rstd;
}

void head_norm_backward(Stream& stream, const NormWeights& w, const Tensor& in_TN,
                        const Tensor& rstd, const Written& written, HeadRange range,
                        const Tensor& dw_D, const SharedRows& shared) {
  const Tensor &d_TN = written.plain, &amax = written.amax;
  MT_SHAPE("head_norm_backward", w.w_H, {range.width()});
  MT_SHAPE("head_norm_backward", dw_D, {range.width()});
  MT_SHAPE("head_norm_backward", d_TN, {in_TN.dim(0), in_TN.dim(1)});
  MT_SHAPE("head_norm_backward", rstd, {in_TN.dim(0) * range.rows()});
  if (shared.sum_T) {
    MT_SHAPE("head_norm_backward", shared.sum_T, {in_TN.dim(0)});
  }
  MT_FLOAT("head_norm_backward", in_TN);
  MT_DTYPE("head_norm_backward", w.w_H, in_TN.dtype());
  MT_DTYPE("head_norm_backward", d_TN, in_TN.dtype());
  MT_DTYPE("head_norm_backward", dw_D, DType::f32);
  kernels::NormBackward args{.kind = NormKind::rms,
                             .dy_TH = head_part(d_TN, range),
                             .x_TH = head_part(in_TN, range),
                             .w_H = w.w_H,
                             .rstd_T = rstd,
                             .plus_one = w.plus_one,
                             .dx_TH = head_part(d_TN, range),
                             .dw_H = dw_D,
                             .amax = amax,
                             .T = in_TN.dim(0),
                             .H = range.width(),
                             .heads = range.rows(),
                             .token_stride = in_TN.dim(1),
                             .sm_margin = stream.device().norm_sm_margin(),
                             .sum_T = shared.sum_T,
                             .width = shared.width};
  enqueue(stream, "head_norm_bwd", args);
}

}  // namespace mtrain::ops
