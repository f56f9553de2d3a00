#include "model/experts/expert_linear.h"

#include <utility>

#include "ops/elementwise.h"
#include "ops/experts.h"

namespace mtrain::model {

using Role = Quantizer::Role;

ExpertLinear::ExpertLinear(Parameter& weight, const std::string& name, const Names& names,
                           std::shared_ptr<Quantizer> quantizer, const ExpertAdapter& adapter)
    : weight_(&weight),
      names_(names),
      quantizer_(std::move(quantizer), name, weight),
      adapter_(adapter) {}

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
  const Tensor y_RO =
      multiply(step.compute, names_.forward, x_RI, true, step.training, first_E1, unused_rows);
  add_adapter(step.compute, false, x_RI.data, first_E1, unused_rows, 0, y_RO);
  return y_RO;
}

Tensor ExpertLinear::dgrad(Step& step, const ops::Operand& dy_RO, const Tensor& first_E1,
                           bool unused_rows) const {
  const Tensor dx_RI =
      multiply(step.compute, names_.dgrad, dy_RO, false, false, first_E1, unused_rows);
  add_adapter(step.compute, true, dy_RO.data, first_E1, unused_rows, 0, dx_RI);
  return dx_RI;
}

Tensor ExpertLinear::forward(Step& step, const Tensor& x_RI, const ExpertChunk& chunk,
                             const Tensor& into) const {
  const Tensor y_RO = multiply(step.compute, names_.forward, x_RI, true, chunk, into);
  add_adapter(step.compute, false, x_RI, chunk.first_E1, false, chunk.first_expert, y_RO);
  return y_RO;
}

Tensor ExpertLinear::dgrad(Step& step, const Tensor& dy_RO, const ExpertChunk& chunk,
                           const Tensor& into) const {
  const Tensor dx_RI = multiply(step.compute, names_.dgrad, dy_RO, false, chunk, into);
  add_adapter(step.compute, true, dy_RO, chunk.first_E1, false, chunk.first_expert, dx_RI);
  return dx_RI;
}

Tensor ExpertLinear::inner(Stream& stream, const char* name, const Tensor& rows,
                           const Tensor& factor, bool trans, const Tensor& first_E1,
                           bool unused_rows) const {
  const Tensor u =
      ops::grouped_matmul(stream, name, rows, factor, first_E1, trans, rows.dtype(), unused_rows);
  ops::scale(stream, u, adapter_.scale);
  return u;
}

void ExpertLinear::add_adapter(Stream& stream, bool backward, const Tensor& rows,
                               const Tensor& first_E1, bool unused_rows, int64_t first_expert,
                               const Tensor& result) const {
  if (!adapter_.a || rows.dim(0) == 0) return;
  const char* const name = backward ? "experts_lora_dgrad" : "experts_lora_fwd";
  const int64_t end = first_expert + first_E1.count() - 1;
  const Tensor a = adapter_.a->value.rows(first_expert, end),
               b = adapter_.b->value.rows(first_expert, end);
  const Tensor u = inner(stream, name, rows, backward ? b : a, !backward, first_E1, unused_rows);
  ops::add_into(stream,
                ops::grouped_matmul(stream, name, u, backward ? a : b, first_E1, !backward,
                                    result.dtype(), unused_rows),
                result);
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
  WgradQueue::Entry entry;
  if (adapter_.a) {
    // Sharded factors may be gone when the queue runs. Their inner results are small.
    const auto inner_of = [&](const Tensor& rows, const Parameter& factor, bool trans) {
      return inner(step.compute, "experts_lora_wgrad", rows, factor.value, trans, first_E1, false);
    };
    entry.run = [this, &stream = step.compute, u = inner_of(x_RI.data, *adapter_.a, true),
                 du = inner_of(dy_RO.data, *adapter_.b, false), x = std::move(x_RI.data),
                 dy = std::move(dy_RO.data), first_E1] {
      const auto add = [&](const Tensor& left, const Tensor& right, Parameter& p) {
        ops::grouped_weight_gradient_into(stream, "experts_lora_wgrad", left, right, first_E1,
                                          p.grad, !p.consume_first_write());
      };
      add(du, x, *adapter_.a);
      add(dy, u, *adapter_.b);
    };
    entry.completes = {adapter_.a, adapter_.b};
  } else if (weight_->frozen) {
    entry.run = [] {};
  } else {
    entry.run = [this, &stream = step.compute, dy = std::move(dy_RO), x = std::move(x_RI),
                 first_E1] {
      const bool add = !weight_->consume_first_write();
      ops::grouped_weight_gradient_into(stream, names_.wgrad, dy, x, first_E1, weight_->grad, add);
    };
    entry.completes = {weight_};
  }
  step.wgrad.push(std::move(entry));
}

}  // namespace mtrain::model
