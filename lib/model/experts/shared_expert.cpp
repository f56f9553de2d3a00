#include "model/experts/shared_expert.h"

#include <utility>

#include "model/gate_function.h"
#include "model/lora_linear.h"
#include "ops/elementwise.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/permute.h"

namespace mtrain::model {

namespace {
// A gate is a router that gives each token the only expert there is, with a sigmoid as its weight.
constexpr RouterForm kGate{.score = RouterScore::sigmoid};
}  // namespace

SharedExpert::SharedExpert(ParamStore& params, UnitId unit,
                           const std::vector<spec::TensorSpec>& tensors, const std::string& name,
                           const spec::ModelSpec& model, const spec::Experts& experts,
                           const Recompute& recompute, const ModelImpls& impls)
    : keep_outputs_(!recompute.shared_expert),
      keep_activation_(!recompute.cheap && !recompute.shared_expert),
      function_(gate_function(experts.activation)) {
  TensorParallel& tensor = *impls.tensor;
  const std::shared_ptr<Quantizer> quantizer = impls.quantizer_of(unit.layer);
  gate_up_ = make_linear(params, {unit, tensors, name + ".gate_up", LayerGemm::fc1, quantizer},
                         LinearSide::column, model, impls.tensor);
  down_ = make_linear(params, {unit, tensors, name + ".down", LayerGemm::fc2, quantizer},
                      LinearSide::row, model, impls.tensor);
  if (experts.shared_gate)
    gate_ =
        params.add(unit, part_of(tensor_of(tensors, name + ".gate.weight"), tensor.replicated()));
}

SharedExpert::Gate SharedExpert::gate_of(Step& step, const Tensor& x_TH) const {
  Gate g;
  g.logit_T1 = ops::matmul(step.compute, "matmul_shared_gate_fwd", x_TH, gate_->value, {.b = true},
                           DType::f32);
  g.routing = ops::route_tokens(step.compute, g.logit_T1, 1, kGate);
  const ops::ExpertRows rows = ops::expert_rows(step.compute, g.routing.expert_TK, 1);
  g.row_T1 = rows.row_TK, g.choice_T = rows.choice_R;
  return g;
}

SharedExpert::Activations SharedExpert::up(Step& step, const Tensor& x_TH) {
  Activations a;
  a.up_TF = up_forward(step, x_TH, a);
  return a;
}

Tensor SharedExpert::up_forward(Step& step, const Tensor& x_TH, Activations& a) {
  a.up_in.value = x_TH;
  Tensor up_TF = gate_up_->forward(step, a.up_in);
  a.up_in.value = {};
  return up_TF;
}

Tensor SharedExpert::down(Step& step, const Tensor& x_TH, Activations a) {
  a.down_in = ops::swiglu(step.compute, a.up_TF, {}, function_);
  Tensor y_TH = down_->forward(step, a.down_in);
  if (!keep_activation_) a.down_in.value = {};
  if (gate_) {
    a.gate = gate_of(step, x_TH);
    if (keep_outputs_) a.y_TH = y_TH;
    y_TH = ops::unpermute(step.compute, y_TH, a.gate.row_T1, a.gate.routing.weight_TK);
  }
  if (!keep_outputs_) a.up_TF = {};
  step.stash->push(std::move(a));
  return y_TH;
}

Tensor SharedExpert::gate_backward(Step& step, const Gate& g, const Tensor& x_TH,
                                   const Tensor& y_TH, const Tensor& dy_TH) {
  Stream& stream = step.compute;
  const Tensor dweight_T1 = ops::unpermute_weight_grad(stream, dy_TH, y_TH, g.row_T1);
  const Tensor dlogit = ops::in_dtype(
      stream, ops::route_tokens_grad(stream, g.logit_T1, g.routing, dweight_T1, kGate),
      x_TH.dtype());
  WgradQueue::Entry entry;
  entry.run = [this, &stream, x_TH, dlogit] {
    ops::weight_gradient_into(stream, "matmul_shared_gate_wgrad", dlogit, x_TH, gate_->grad,
                              !gate_->consume_first_write(), {});
  };
  entry.completes = {gate_};
  if (!gate_->frozen) step.wgrad.push(std::move(entry));
  return ops::matmul(stream, "matmul_shared_gate_dgrad", dlogit, gate_->value, {}, x_TH.dtype());
}

void SharedExpert::down_backward(Step& step, const Tensor& x_TH, const Tensor& dy_TH,
                                 Activations& a) {
  Stream& stream = step.compute;
  Tensor dy = dy_TH;
  if (!keep_outputs_) {
    a.up_TF = up_forward(step, x_TH, a);
    if (gate_) {
      a.down_in.value = ops::swiglu(stream, a.up_TF, {}, function_);
      a.y_TH = down_->forward(step, a.down_in);
      a.down_in.value = {};
    }
  }
  if (gate_) {
    a.dx_gate_TH = gate_backward(step, a.gate, x_TH, a.y_TH, dy_TH);
    dy = ops::permute(stream, dy_TH, a.gate.choice_T, 1, a.gate.routing.weight_TK);
    a.y_TH = {}, a.gate = {};
  }
  InputGradient g = down_->dgrad(step, std::exchange(dy, {}));
  // Unless the activation's output is kept, the kernel overwrites its gradient with it.
  const bool recomputes = !a.down_in.value;
  ops::ActivationGradient d = ops::swiglu_backward(
      stream, a.up_TF, g.dx_TI, {}, recomputes ? &a.down_in.rewrite : nullptr, function_);
  if (recomputes) a.down_in.value = std::move(d.y);
  a.dup_TF = std::move(d.dx);
  down_->wgrad(step, std::exchange(a.down_in, {}), std::move(g.dy));
  a.up_TF = {};
}

Tensor SharedExpert::up_backward(Step& step, const Tensor& x_TH, Activations& a) {
  a.up_in.value = x_TH;
  const Tensor dx_TH =
      gate_up_->backward(step, std::exchange(a.up_in, {}), std::exchange(a.dup_TF, {}));
  if (a.dx_gate_TH) ops::add_into(step.compute, std::exchange(a.dx_gate_TH, Tensor()), dx_TH);
  return dx_TH;
}

}  // namespace mtrain::model
