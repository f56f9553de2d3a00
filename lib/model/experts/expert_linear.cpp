#include "model/experts/expert_linear.h"

#include <utility>

#include "ops/experts.h"

namespace mtrain::model {

using Role = Quantizer::Role;

ExpertLinear::ExpertLinear(Parameter& weight, const std::string& name, const Names& names,
                           std::shared_ptr<Quantizer> quantizer)
    : weight_(&weight), names_(names), quantizer_(std::move(quantizer), name, weight) {}

// Without a scale the rows are new, and their maximum enters the history.
ops::Operand ExpertLinear::input(Step& step, LinearOperand& x_RI) const {
  const bool record = step.training && !x_RI.scale;
  ops::Operand rows = quantizer_.rows(step.compute, Role::input, x_RI, record);
  if (!rows.quantized()) return rows;
  x_RI.value = {};
  x_RI.value.quantized = rows;
  return rows;
}

ops::Operand ExpertLinear::gradient(Step& step, const Tensor& dy_RO) const {
  LinearOperand dy(dy_RO);
  return quantizer_.rows(step.compute, Role::gradient, dy, true);
}

Tensor ExpertLinear::forward(Step& step, const ops::Operand& x_RI, const Tensor& first_E1,
                             bool unused_rows) const {
  return multiply(step.compute, names_.forward, x_RI, true, step.training, first_E1, unused_rows);
}

Tensor ExpertLinear::dgrad(Step& step, const ops::Operand& dy_RO, const Tensor& first_E1,
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
  MT_CHECK(!quantizer_.quantizes(), "experts in chunks lack a scale for all rows");
  const int64_t first = chunk.first_expert;
  const Tensor w = weight_->value.rows(first, first + chunk.experts);
  return ops::grouped_matmul(stream, name, a, w, chunk.first_E1, trans_b, w.dtype(), false, into);
}

// `record`: the weight's maximum enters the history.
Tensor ExpertLinear::multiply(Stream& stream, const char* name, const ops::Operand& a, bool trans_b,
                              bool record, const Tensor& first_E1, bool unused_rows) const {
  ops::Operand w = quantizer_.weight(stream, false, record);
  w.data = w.data.view(weight_->shape);
  return ops::grouped_matmul(stream, name, a, w, first_E1, trans_b, weight_->compute, unused_rows);
}

void ExpertLinear::wgrad(Step& step, ops::Operand dy_RO, ops::Operand x_RI,
                         const Tensor& first_E1) const {
  step.wgrad.push(
      {[this, &stream = step.compute, dy = std::move(dy_RO), x = std::move(x_RI), first_E1] {
         const bool add = !weight_->consume_first_write();
         ops::grouped_weight_gradient_into(stream, names_.wgrad, dy, x, first_E1, weight_->grad,
                                           add);
       },
       {weight_}});
}

}  // namespace mtrain::model
