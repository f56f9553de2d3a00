#include "model/experts/expert_linear.h"

#include <utility>

#include "ops/experts.h"

namespace mtrain::model {

using Role = Float8Scaling::Role;

ExpertLinear::ExpertLinear(Parameter& weight, const std::string& name, const Names& names,
                           std::shared_ptr<Float8Scaling> fp8)
    : weight_(&weight),
      names_(names),
      fp8_(std::move(fp8)),
      number_(fp8_ ? fp8_->add(name, weight) : 0) {}

// Without a scale this is the forward's first sight of the rows: their maximum enters the history.
ExpertLinear::Rows ExpertLinear::input(Step& step, const Tensor& x_RI,
                                       ops::Float8Scale& scale) const {
  if (!fp8_) return {x_RI, {}};
  const bool again = bool(scale.scale);
  if (!again) scale = fp8_->scale(step.compute, number_, Role::input, x_RI);
  return fp8_->quantize(step.compute, number_, Role::input, x_RI, scale, false,
                        step.training && !again);
}

ExpertLinear::Rows ExpertLinear::gradient(Step& step, const Tensor& dy_RO) const {
  if (!fp8_) return {dy_RO, {}};
  const ops::Float8Scale scale = fp8_->scale(step.compute, number_, Role::gradient, dy_RO);
  return fp8_->quantize(step.compute, number_, Role::gradient, dy_RO, scale, false, true);
}

Tensor ExpertLinear::forward(Step& step, const Rows& x_RI, const Tensor& first_E1,
                             bool unused_rows) const {
  return multiply(step.compute, names_.forward, x_RI, true, step.training, first_E1, unused_rows);
}

Tensor ExpertLinear::dgrad(Step& step, const Rows& dy_RO, const Tensor& first_E1,
                           bool unused_rows) const {
  return multiply(step.compute, names_.dgrad, dy_RO, false, false, first_E1, unused_rows);
}

Tensor ExpertLinear::forward(Step& step, const Tensor& x_RI, const ExpertChunk& chunk,
                             const Tensor& into) const {
  return multiply(step.compute, names_.forward, x_RI, true, chunk, into);
}

Tensor ExpertLinear::dgrad(Step& step, const Tensor& dy_RO, const ExpertChunk& chunk,
                           const Tensor& into) const {
  return multiply(step.compute, names_.dgrad, dy_RO, false, chunk, into);
}

Tensor ExpertLinear::multiply(Stream& stream, const char* name, const Tensor& a, bool trans_b,
                              const ExpertChunk& chunk, const Tensor& into) const {
  MT_CHECK(!fp8_, "experts in chunks have no scale that is of all rows");
  const int64_t first = chunk.first_expert;
  return ops::grouped_matmul(stream, name, a, weight_->value.rows(first, first + chunk.experts),
                             chunk.first_E1, trans_b, false, into);
}

// `record`: the weight's maximum enters the history.
Tensor ExpertLinear::multiply(Stream& stream, const char* name, const Rows& a, bool trans_b,
                              bool record, const Tensor& first_E1, bool unused_rows) const {
  const Tensor& value = weight_->value;
  if (!fp8_)
    return ops::grouped_matmul(stream, name, a.data, value, first_E1, trans_b, unused_rows);
  ops::Float8Tensor w = fp8_->weight(stream, number_, false, record);
  w.data = w.data.view(value.shape());
  return ops::grouped_matmul_float8(stream, name, a, w, first_E1, trans_b, value.dtype(),
                                    unused_rows);
}

void ExpertLinear::wgrad(Step& step, Rows dy_RO, Rows x_RI, const Tensor& first_E1) const {
  step.wgrad.push({[this, &stream = step.compute, dy = std::move(dy_RO), x = std::move(x_RI),
                    first_E1] { wgrad_now(stream, dy, x, first_E1); },
                   {weight_}});
}

void ExpertLinear::wgrad_now(Stream& stream, const Rows& dy_RO, const Rows& x_RI,
                             const Tensor& first_E1) const {
  const bool add = !weight_->consume_first_write();
  if (fp8_)
    ops::grouped_weight_gradient_float8_into(stream, names_.wgrad, dy_RO, x_RI, first_E1,
                                             weight_->grad, add);
  else
    ops::grouped_weight_gradient_into(stream, names_.wgrad, dy_RO.data, x_RI.data, first_E1,
                                      weight_->grad, add);
}

}  // namespace mtrain::model
