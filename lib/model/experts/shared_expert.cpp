#include "model/experts/shared_expert.h"

#include <cmath>
#include <utility>

#include "model/gate_function.h"
#include "ops/experts.h"
#include "ops/permute.h"

namespace mtrain::model {

namespace {
// A gate is a router that gives each token the only expert there is, with a sigmoid as its weight.
constexpr RouterForm kGate{.score = RouterScore::sigmoid};
}  // namespace

SharedExpert::SharedExpert(ParamStore& params, UnitId unit, const std::string& name,
                           const spec::ModelSpec& model, const spec::Experts& experts,
                           const Recompute& recompute, const ModelImpls& impls)
    : keep_outputs_(!recompute.shared_expert),
      keep_activation_(!recompute.cheap && !recompute.shared_expert),
      function_(gate_function(experts.activation)) {
  const int64_t F = experts.shared_ffn;
  const auto std = float(model.init_std);
  gate_up_ = impls.tensor->column_linear(params, {.unit = unit,
                                                  .name = name + ".gate_up",
                                                  .I = model.hidden,
                                                  .O = 2 * F,
                                                  .bias = false,
                                                  .std = std,
                                                  .gemm = LayerGemm::fc1,
                                                  .sections = {{F, 1}, {F, 1}},
                                                  .fp8 = impls.fp8_of(unit.layer)});
  down_ =
      impls.tensor->row_linear(params, {.unit = unit,
                                        .name = name + ".down",
                                        .I = F,
                                        .O = model.hidden,
                                        .bias = false,
                                        .std = std / std::sqrt(2.0f * float(model.layer_count())),
                                        .gemm = LayerGemm::fc2,
                                        .fp8 = impls.fp8_of(unit.layer)});
  if (experts.shared_gate)
    gate_ = params.add(unit, {.name = name + ".gate.weight",
                              .shape = {1, model.hidden},
                              .std = std,
                              .shard = impls.tensor->replicated()});
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
  a.up_TF = gate_up_->forward(step, x_TH, a.up_scale);
  return a;
}

Tensor SharedExpert::down(Step& step, const Tensor& x_TH, Activations a) {
  const Tensor act_TF = ops::swiglu(step.compute, a.up_TF, {}, function_);
  if (keep_activation_) a.act_TF = act_TF;
  Tensor y_TH = down_->forward(step, act_TF, a.down_scale);
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
  step.wgrad.push(std::move(entry));
  return ops::matmul(stream, "matmul_shared_gate_dgrad", dlogit, gate_->value, {}, x_TH.dtype());
}

void SharedExpert::down_backward(Step& step, const Tensor& x_TH, const Tensor& dy_TH,
                                 Activations& a) {
  Stream& stream = step.compute;
  Tensor dy = dy_TH;
  if (!keep_outputs_) {
    a.up_TF = gate_up_->forward(step, x_TH, a.up_scale);
    if (gate_)
      a.y_TH = down_->forward(step, ops::swiglu(stream, a.up_TF, {}, function_), a.down_scale);
  }
  if (gate_) {
    a.dx_gate_TH = gate_backward(step, a.gate, x_TH, a.y_TH, dy_TH);
    dy = ops::permute(stream, dy_TH, a.gate.choice_T, 1, a.gate.routing.weight_TK);
    a.y_TH = {}, a.gate = {};
  }
  InputGradient g = down_->dgrad(step, {dy});
  dy = {};
  // Unless the activation's output is kept, the kernel overwrites its gradient with it.
  const Tensor again_TF = a.act_TF ? Tensor() : g.dx_TI;
  a.dup_TF = ops::swiglu_backward(stream, a.up_TF, g.dx_TI, again_TF, {}, {}, function_);
  down_->wgrad(step, a.act_TF ? a.act_TF : g.dx_TI, a.down_scale, std::move(g.for_wgrad));
  a.up_TF = {}, a.act_TF = {};
}

Tensor SharedExpert::up_backward(Step& step, const Tensor& x_TH, Activations& a) {
  const Tensor dx_TH =
      gate_up_->backward(step, x_TH, a.up_scale, {std::exchange(a.dup_TF, Tensor())});
  if (a.dx_gate_TH) ops::add_into(step.compute, std::exchange(a.dx_gate_TH, Tensor()), dx_TH);
  return dx_TH;
}

}  // namespace mtrain::model
