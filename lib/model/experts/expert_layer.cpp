#include "model/experts/expert_layer.h"

#include <cmath>
#include <utility>

#include "device/device.h"
#include "model/experts/experts_of_step.h"
#include "model/experts/shared_expert.h"
#include "model/experts/token_dispatcher.h"
#include "ops/experts.h"

namespace mtrain::model {

namespace {

// What the segments of one layer share.
struct ExpertLayer {
  ExpertLayer(ParamStore& params, const GptConfig& config, int64_t number,
              const Recompute& recompute, const ModelImpls& impls)
      : c(config),
        layer(number),
        keeps_norm(!recompute.cheap && !recompute.norms),
        keeps_activation(!recompute.cheap),
        tensor(impls.tensor),
        dispatcher(local_dispatcher(c.experts.count)),
        norm(params, unit_id(), name() + ".norm", c, *tensor) {
    const ExpertConfig& e = c.experts;
    router = params.add(unit_id(), {.name = name() + ".router.weight",
                                    .shape = {e.count, c.hidden},
                                    .std = c.init_std,
                                    .shard = tensor->replicated()});
    if (e.shared_ffn)
      shared = std::make_unique<SharedExpert>(params, unit_id(), name() + ".shared_expert", c,
                                              recompute, impls);
    const UnitId experts{UnitKind::experts, layer};
    gate_up = params.add(experts, {.name = name() + ".experts.gate_up.weight",
                                   .shape = {e.count, 2 * e.ffn, c.hidden},
                                   .std = c.init_std});
    down = params.add(experts, {.name = name() + ".experts.down.weight",
                                .shape = {e.count, c.hidden, e.ffn},
                                .std = c.init_std / std::sqrt(2.0f * float(c.layers))});
  }

  UnitId unit_id() const { return {UnitKind::layer, layer}; }
  std::string name() const { return segment_name({SegmentKind::mlp, layer}); }

  const GptConfig c;
  const int64_t layer;
  const bool keeps_norm, keeps_activation;
  const std::shared_ptr<TensorParallel> tensor;
  const std::unique_ptr<TokenDispatcher> dispatcher;
  const Norm norm;
  std::unique_ptr<SharedExpert> shared;  // null without one
  Parameter *router, *gate_up, *down;
};

class ExpertSegment : public Segment {
 public:
  ExpertSegment(std::shared_ptr<ExpertLayer> layer, SegmentKind kind)
      : l_(std::move(layer)), id_{kind, l_->layer}, name_(segment_name(id_)) {}
  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return l_->norm.unit(); }
  ops::Float8Write gradient_write() const override { return {}; }

 protected:
  Device::Scope scope(Step& step) const { return {step.compute.device(), name_}; }

  const std::shared_ptr<ExpertLayer> l_;
  const SegmentId id_;
  const std::string name_;
};

// A dispatcher's route, as the stash keeps it.
struct KeptRoute {
  std::any route;
};

struct RouteActivations {
  ops::NormResult norm;  // its output is absent if it is computed again
  Tensor logits_TE;
  ops::Routing routing;
  Tensor loss_grad_BG;  // of the balance losses; absent without them
};

class Route : public ExpertSegment {
 public:
  explicit Route(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::route) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    const ExpertConfig& e = l_->c.experts;
    RouteActivations a;
    a.norm = l_->norm.forward(step, flow.h);
    a.logits_TE = ops::in_dtype(step.compute,
                                ops::matmul(step.compute, "matmul_router_fwd", a.norm.y_TH,
                                            l_->router->value, {.b = true}, DType::f32),
                                e.logits);
    a.routing = ops::route_tokens(step.compute, a.logits_TE, e.per_token, e.form);
    if (step.training && step.experts) a.loss_grad_BG = losses(step, a);
    flow.h = {a.norm.sum_TH, {}};
    flow.experts = {
        .x_TH = a.norm.y_TH, .expert_TK = a.routing.expert_TK, .weight_TK = a.routing.weight_TK};
    if (!l_->keeps_norm) a.norm.y_TH = {};
    step.stash.push(std::move(a));
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Float8Write& write) override {
    const Device::Scope in = scope(step);
    Stream& stream = step.compute;
    auto a = step.stash.pop<RouteActivations>();
    ExpertFlow& f = flow.experts;
    const Tensor y = a.norm.y_TH ? a.norm.y_TH
                     : f.x_TH    ? f.x_TH
                                 : l_->norm.forward(step, {a.norm.sum_TH, {}}).y_TH;
    const Tensor dlogits =
        ops::in_dtype(stream,
                      ops::route_tokens_grad(stream, a.logits_TE, a.routing, f.weight_TK,
                                             l_->c.experts.form, a.loss_grad_BG),
                      y.dtype());
    Parameter* const router = l_->router;
    step.wgrad.push({[router, &stream, y, dlogits] {
                       ops::weight_gradient_into(stream, "matmul_router_wgrad", dlogits, y,
                                                 router->grad, !router->consume_first_write(), {});
                     },
                     {router}});
    ops::add_into(stream,
                  ops::matmul(stream, "matmul_router_dgrad", dlogits, router->value, {}, y.dtype()),
                  f.dx_TH);
    return Flow::backward(l_->norm.backward(step, a.norm, f.dx_TH, flow.d.d_TH, write), write);
  }

 private:
  // Adds the micro-batch's losses and sums to those of the step, unless an earlier forward has done
  // so. Returns the losses' gradient; absent without losses.
  Tensor losses(Step& step, const RouteActivations& a) const {
    const ExpertConfig& e = l_->c.experts;
    const Tensor sums_BS =
        ops::router_sums(step.compute, a.logits_TE, a.routing,
                         e.loss_coeffs.sample > 0 ? step.seq.B : 1, e.form.score);
    if (!step.recomputing) {
      const int64_t S = sums_BS.dim(1);
      ops::column_sum(step.compute, sums_BS, step.experts->sums_LS.flat(l_->layer * S, {S}));
    }
    const ops::RouterLossCoeffs& coeffs = e.loss_coeffs;
    if (coeffs.batch == 0 && coeffs.sample == 0 && coeffs.z == 0) return {};
    Tensor loss_2 = step.experts->loss_2;
    if (step.recomputing) {
      loss_2 = Tensor::empty(step.compute, {2}, DType::f64);
      ops::fill(step.compute, loss_2, 0);
    }
    return ops::router_losses(step.compute, sums_BS, e.count, e.per_token, coeffs,
                              step.experts->loss_grad, loss_2);
  }
};

class Dispatch : public ExpertSegment {
 public:
  explicit Dispatch(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::dispatch) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    DispatchedTokens d = l_->dispatcher->dispatch(step, f.x_TH, f.expert_TK, f.weight_TK);
    if (!l_->shared) f.x_TH = {};
    f.expert_TK = {}, f.weight_TK = {};
    f.rows_RH = d.x_RH, f.weight_R = d.weight_R, f.first_E1 = d.first_E1;
    step.stash.push(KeptRoute{d.route});
    f.route = std::move(d.route);
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Float8Write&) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    const auto route = step.stash.pop<KeptRoute>().route;
    const DispatchedGradients d = l_->dispatcher->dispatch_backward(
        step, route, std::exchange(f.rows_RH, {}), std::exchange(f.weight_R, {}));
    if (f.dx_TH)
      ops::add_into(step.compute, d.dx_TH, f.dx_TH);
    else
      f.dx_TH = d.dx_TH;
    f.weight_TK = d.dweight_TK;
    return flow;
  }
};

struct ExpertActivations {
  Tensor x_RH, weight_R, first_E1;
  Tensor up_R2F;  // gate | up
  Tensor act_RF;  // absent if it is computed again
};

class Experts : public ExpertSegment {
 public:
  explicit Experts(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::mlp) {}
  ParamUnit* unit() const override { return l_->down->unit; }

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    ExpertActivations a{.x_RH = std::move(f.rows_RH),
                        .weight_R = std::move(f.weight_R),
                        .first_E1 = std::move(f.first_E1)};
    a.up_R2F = ops::grouped_matmul(step.compute, "experts_up_fwd", a.x_RH, l_->gate_up->value,
                                   a.first_E1, true);
    const Tensor act_RF = ops::weighted_swiglu(step.compute, a.up_R2F, a.weight_R);
    f.rows_RH = ops::grouped_matmul(step.compute, "experts_down_fwd", act_RF, l_->down->value,
                                    a.first_E1, true);
    if (l_->keeps_activation) a.act_RF = act_RF;
    f.weight_R = {}, f.first_E1 = {};
    step.stash.push(std::move(a));
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Float8Write&) override {
    const Device::Scope in = scope(step);
    Stream& stream = step.compute;
    auto a = step.stash.pop<ExpertActivations>();
    ExpertFlow& f = flow.experts;
    Tensor dy_RH = std::move(f.rows_RH);
    Tensor dact_RF = ops::grouped_matmul(stream, "experts_down_dgrad", dy_RH, l_->down->value,
                                         a.first_E1, false);
    // Unless the activation's output is kept, the kernel overwrites its gradient with it.
    const Tensor again_RF = a.act_RF ? Tensor() : dact_RF;
    const ops::WeightedSwigluGradients d =
        ops::weighted_swiglu_backward(stream, a.up_R2F, a.weight_R, dact_RF, again_RF);
    push_wgrad(step, l_->down, "experts_down_wgrad", std::move(dy_RH),
               a.act_RF ? std::move(a.act_RF) : std::move(dact_RF), a.first_E1);
    a.up_R2F = {};
    f.rows_RH = ops::grouped_matmul(stream, "experts_up_dgrad", d.dgate_up_R2F, l_->gate_up->value,
                                    a.first_E1, false);
    f.weight_R = d.dweight_R;
    push_wgrad(step, l_->gate_up, "experts_up_wgrad", d.dgate_up_R2F, std::move(a.x_RH),
               a.first_E1);
    return flow;
  }

 private:
  static void push_wgrad(Step& step, Parameter* weight, const char* name, Tensor dy_RO, Tensor x_RI,
                         const Tensor& first_E1) {
    step.wgrad.push({[=, &stream = step.compute, dy = std::move(dy_RO), x = std::move(x_RI)] {
                       ops::grouped_weight_gradient_into(stream, name, dy, x, first_E1,
                                                         weight->grad,
                                                         !weight->consume_first_write());
                     },
                     {weight}});
  }
};

class Combine : public ExpertSegment {
 public:
  explicit Combine(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::combine) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    f.out_TH = l_->dispatcher->combine(step, f.route, std::exchange(f.rows_RH, {}));
    step.stash.push(KeptRoute{std::exchange(f.route, {})});
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Float8Write&) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    const auto route = step.stash.pop<KeptRoute>().route;
    f.rows_RH = l_->dispatcher->combine_backward(step, route, std::exchange(f.out_TH, {}));
    return flow;
  }
};

struct MergeActivations {
  Tensor x_TH;  // the shared expert's input; absent if it is computed again from the stream
  Tensor sum_TH;
};

class Merge : public ExpertSegment {
 public:
  explicit Merge(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::merge) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    ExpertFlow f = std::exchange(flow.experts, {});
    if (l_->shared) {
      ops::add_into(step.compute, l_->shared->forward(step, f.x_TH), f.out_TH);
      step.stash.push(MergeActivations{l_->keeps_norm ? f.x_TH : Tensor(), flow.h.x_TH});
    }
    drop(step, f.out_TH, dropout_id(), l_->c.hidden_dropout, first_row(step));
    flow.h.delta_TH = std::move(f.out_TH);
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Float8Write&) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    f.out_TH =
        drop_backward(step, flow.d.d_TH, dropout_id(), l_->c.hidden_dropout, first_row(step));
    if (!l_->shared) return flow;
    const auto a = step.stash.pop<MergeActivations>();
    f.x_TH = a.x_TH ? a.x_TH : l_->norm.forward(step, {a.sum_TH, {}}).y_TH;
    f.dx_TH = l_->shared->backward(step, f.x_TH, f.out_TH);
    return flow;
  }

 private:
  // The layer's dropout has the key of a dense layer's.
  SegmentId dropout_id() const { return {SegmentKind::mlp, id_.layer}; }
  int64_t first_row(const Step& step) const { return l_->tensor->first_row(step.seq.T()); }
};

}  // namespace

std::vector<std::unique_ptr<Segment>> expert_segments(ParamStore& params, const GptConfig& c,
                                                      int64_t layer, const Recompute& recompute,
                                                      const ModelImpls& impls) {
  const auto shared = std::make_shared<ExpertLayer>(params, c, layer, recompute, impls);
  std::vector<std::unique_ptr<Segment>> all;
  all.push_back(std::make_unique<Route>(shared));
  all.push_back(std::make_unique<Dispatch>(shared));
  all.push_back(std::make_unique<Experts>(shared));
  all.push_back(std::make_unique<Combine>(shared));
  all.push_back(std::make_unique<Merge>(shared));
  return all;
}

}  // namespace mtrain::model
