#include "model/segment_norms.h"

#include <utility>

namespace mtrain::model {

InputNorm::InputNorm(ParamStore& params, UnitId unit, const std::string& name,
                     const spec::ModelSpec& model, const spec::LayerSpec& layer,
                     const TensorParallel& tensor) {
  if (layer.input_norms) norm_.emplace(params, unit, name + ".norm", model, tensor);
}

ops::NormResult InputNorm::forward(Step& step, const Hidden& h,
                                   const ops::Float8Write& write) const {
  if (norm_) return norm_->forward(step, h, write);
  const Tensor sum_TH = materialize(step, h);
  return {.sum_TH = sum_TH, .y_TH = sum_TH, .rstd_T = {}, .mean_T = {}};
}

HiddenGradient InputNorm::backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                                   const Tensor& dresidual_TH,
                                   const ops::Float8Write& write) const {
  if (norm_) {
    ops::NormGradient d = norm_->backward(step, forward, dy_TH, dresidual_TH, write);
    return {std::move(d.dx_TH), write, std::move(d.quantized_TH)};
  }
  ops::add_into(step.compute, dresidual_TH, dy_TH);
  return {dy_TH};
}

SegmentOutput::SegmentOutput(ParamStore& params, UnitId unit, const std::string& name,
                             const spec::ModelSpec& model, const spec::LayerSpec& layer,
                             std::shared_ptr<TensorParallel> tensor, const SegmentId& segment)
    : tensor_(std::move(tensor)),
      segment_(segment),
      scale_(float(model.residual_scale)),
      dropout_(float(model.hidden_dropout)) {
  if (layer.output_norms) norm_.emplace(params, unit, name + ".out_norm", model, *tensor_);
}

Tensor SegmentOutput::forward(Step& step, const Tensor& out_TH, ops::NormResult& kept) const {
  Tensor delta_TH = out_TH;
  if (norm_) {
    kept = norm_->forward(step, {out_TH, {}});
    delta_TH = std::exchange(kept.y_TH, {});
  }
  if (scale_ != 1) ops::scale(step.compute, delta_TH, scale_);
  drop(step, delta_TH, segment_, dropout_, first_row(step));
  return delta_TH;
}

WrittenGradient SegmentOutput::backward(Step& step, const HiddenGradient& d,
                                        const ops::NormResult& kept, const Linear* last) const {
  Tensor dout_TH = drop_backward(step, d.d_TH, segment_, dropout_, first_row(step));
  if (scale_ != 1) {
    if (dropout_ == 0) {  // the residual path still needs d_TH
      dout_TH = Tensor::empty(step.compute, d.d_TH.shape(), d.d_TH.dtype());
      ops::cast(step.compute, d.d_TH, dout_TH);
    }
    ops::scale(step.compute, dout_TH, scale_);
  }
  if (!norm_) return {std::move(dout_TH), d.write, d.quantized_TH};
  const ops::Float8Write write = last ? last->gradient_write() : ops::Float8Write{};
  ops::NormGradient g = norm_->backward(step, kept, dout_TH, {}, write);
  return {std::move(g.dx_TH), write, std::move(g.quantized_TH)};
}

}  // namespace mtrain::model
