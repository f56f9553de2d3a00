#include "model/segment_norms.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

#include <utility>

namespace mtrain::model {

InputNorm::InputNorm(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
                     const std::string& name, const spec::NormSpec& norm,
                     const TensorParallel& tensor) {
  if (find_tensor(tensors, name + ".norm.weight"))
    norm_.emplace(params, unit, tensors, name + ".norm", norm, tensor);
}

ops::NormResult InputNorm::forward(Step& step, const Hidden& h, const ops::Destination& to) const {
  if (norm_) return norm_->forward(step, h, to);
  const Tensor sum_TH = materialize(step, h);
  return {.sum_TH = sum_TH, .y_TH = sum_TH, .rstd_T = {}, .mean_T = {}};
}

ops::Written InputNorm::backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                                 const Tensor& dresidual_TH, const ops::Destination& to) const {
  if (norm_) return norm_->backward(step, forward, dy_TH, dresidual_TH, to);
  ops::add_into(step.compute, dresidual_TH, dy_TH);
  return dy_TH;
}

SegmentOutput::SegmentOutput(ParamStore& params, UnitId unit,
                             const std::vector<spec::TensorSpec>& tensors, const std::string& name,
                             const spec::ModelSpec& model, std::shared_ptr<TensorParallel> tensor,
                             const SegmentId& segment)
    : tensor_(std::move(tensor)),
      segment_(segment),
      scale_(model.residual_scale),
      dropout_(float(model.hidden_dropout)) {
  if (find_tensor(tensors, name + ".out_norm.weight"))
    norm_.emplace(params, unit, tensors, name + ".out_norm", model.norm, *tensor_);
}

Tensor SegmentOutput::forward(Step& step, const Tensor& out_TH, ops::NormResult& kept) const {
  Tensor delta_TH = out_TH;
  if (norm_) {
    kept = norm_->forward(step, {out_TH, {}});
    delta_TH = std::exchange(kept.y_TH, {}).plain;
  }
  if (scale_ != 1) ops::scale(step.compute, delta_TH, scale_);
  drop(step, delta_TH, segment_, dropout_, first_row(step));
  return delta_TH;
}

ops::Written SegmentOutput::backward(Step& step, ops::Written d_TH, const ops::NormResult& kept,
                                     const Linear* last) const {
  d_TH.plain = drop_backward(step, d_TH.plain, segment_, dropout_, first_row(step));
  if (scale_ != 1) {
    if (dropout_ == 0) {  // the residual path still needs the gradient before the multiplication
      const Tensor residual_TH = d_TH.plain;
      d_TH.plain = Tensor::empty(step.compute, residual_TH.shape(), residual_TH.dtype());
      ops::cast(step.compute, residual_TH, d_TH.plain);
    }
    ops::scale(step.compute, d_TH.plain, scale_);
  }
  if (!norm_) return d_TH;
  return norm_->backward(step, kept, d_TH.plain, {}, last ? last->gradient() : ops::Destination{});
}

}  // namespace mtrain::model
