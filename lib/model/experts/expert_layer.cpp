#include "model/experts/expert_layer.h"

#include <any>
#include <map>
#include <optional>
#include <utility>

#include "base/math.h"
#include "device/device.h"
#include "model/experts/chunked_experts.h"
#include "model/experts/expert_linear.h"
#include "model/experts/experts_of_step.h"
#include "model/experts/route_pattern.h"
#include "model/experts/shared_expert.h"
#include "model/experts/token_dispatcher.h"
#include "model/gate_function.h"
#include "model/graph_inputs.h"
#include "model/segment_norms.h"
#include "ops/elementwise.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/reduce.h"

namespace mtrain::model {

namespace {

// What the segments of one layer share.
struct ExpertLayer {
  ExpertLayer(ParamStore& params, const spec::ModelSpec& model, const spec::Experts& e,
              int64_t number, const Recompute& recompute, const ModelImpls& impls)
      : experts(e),
        pattern(impls.route_pattern),
        layer(number),
        keeps_norm(!recompute.cheap && !recompute.norms),
        keeps_activation(!recompute.cheap && !recompute.experts && !recompute.experts_act),
        keeps_rows(!recompute.experts),
        keeps_router(recompute.keeps_router),
        tensor(impls.tensor),
        sum_over_tokens(impls.sum_over_tokens),
        shared_overlaps(impls.shared_expert_overlap),
        dispatcher(impls.token_dispatcher ? impls.token_dispatcher() : local_dispatcher(e.count)),
        norm(params, unit_id(), spec::layer_tensors(model, layer), name(), model.norm, *tensor) {
    const std::vector<spec::TensorSpec> tensors = spec::layer_tensors(model, layer);
    const auto listed = [&](const char* suffix) -> const spec::TensorSpec& {
      return tensor_of(tensors, name() + suffix);
    };
    router = params.add(unit_id(), part_of(listed(".router.weight"), tensor->replicated()));
    if (impls.router_bias_LE) bias_E = impls.router_bias_LE.flat(layer * e.count, {e.count});
    if (e.shared_ffn)
      shared = std::make_unique<SharedExpert>(params, unit_id(), tensors, name() + ".shared_expert",
                                              model, e, recompute, impls);
    // The dropout has the key of a dense layer's.
    output.emplace(params, unit_id(), tensors, name(), model, tensor,
                   SegmentId{SegmentKind::mlp, layer});
    unit = params.unit(unit_id());
    const auto linear = [&](const char* suffix, const ExpertLinear::Names& names,
                            Parameter*& weight, std::optional<ExpertLinear>& into) {
      const std::string full = name() + suffix;
      const auto add = [&](const char* tensor_name) {
        return add_expert_tensor(params, tensor_of(tensors, full + tensor_name), impls);
      };
      weight = add(".weight");
      ExpertAdapter adapter;
      if (find_tensor(tensors, full + ".lora.a"))
        adapter = {.a = add(".lora.a"), .b = add(".lora.b"), .scale = model.lora->expert_scale()};
      into.emplace(*weight, full, names, impls.quantizer_of(layer), adapter);
    };
    linear(".experts.gate_up", {"experts_up_fwd", "experts_up_dgrad", "experts_up_wgrad"}, gate_up,
           up_linear);
    linear(".experts.down", {"experts_down_fwd", "experts_down_dgrad", "experts_down_wgrad"}, down,
           down_linear);
  }

  // The ranks of tp divide each expert as they do a dense MLP. A factor that they do not divide is
  // read by all of them, each with a part of the rows or columns of the other factor: it computes a
  // part of the gradient.
  ShardSpec shard_of(const spec::TensorSpec& t, const ModelImpls& impls) const {
    if (!impls.divided_experts) return {};
    ShardSpec shard{.ranks = tensor->size(), .rank = tensor->rank()};
    using Dim = spec::TensorSplit::Dim;
    if (t.split.dim == Dim::none) shard.partial_grad = true;
    if (t.split.dim == Dim::columns) shard.dim = ShardSpec::Dim::columns;
    if (t.split.dim == Dim::rows) shard.dim = ShardSpec::Dim::rows, shard.sections = sections_of(t);
    return shard;
  }
  Parameter* add_expert_tensor(ParamStore& params, const spec::TensorSpec& t,
                               const ModelImpls& impls) const {
    ParamSpec part = part_of(t, shard_of(t, impls), impls.experts);
    const auto quantizer = impls.quantizer_of(layer);
    part.quantized = !t.adapter && quantizer && quantizer->one_form_of_weights();
    return params.add({UnitKind::experts, layer}, std::move(part));
  }

  UnitId unit_id() const { return {UnitKind::layer, layer}; }
  std::string name() const { return segment_name({SegmentKind::mlp, layer}); }

  const spec::Experts experts;
  const RoutePattern pattern;
  const int64_t layer;
  const bool keeps_norm, keeps_activation, keeps_rows, keeps_router;
  const std::shared_ptr<TensorParallel> tensor;
  const std::function<Event(Stream&, const Tensor&)> sum_over_tokens;
  const bool shared_overlaps;  // a shared expert computes in two parts
  const std::unique_ptr<TokenDispatcher> dispatcher;
  const InputNorm norm;
  std::unique_ptr<SharedExpert> shared;  // null without one
  std::optional<SegmentOutput> output;
  ParamUnit* unit;
  // Whether the segments after the dispatch need the norm's output, too, in some pass.
  bool keeps_input() const { return shared || !keeps_rows; }
  // How many of the choices of T tokens an expert takes; 0: all.
  int64_t capacity(const Step& step, int64_t T) const {
    return experts.drops(step.training) ? experts.capacity(T) : 0;
  }
  // Whether rows travel in chunks in this pass.
  bool in_chunks(const Step& step) const { return step.chunks_experts && dispatcher->chunks() > 1; }
  // Whether some rows of experts may belong to no choice.
  bool unused_rows(const Step& step) const {
    return step.seq.valid_T || experts.drops(step.training);
  }

  Parameter *router, *gate_up, *down;
  std::optional<ExpertLinear> up_linear, down_linear;  // the GEMMs with gate_up and down
  Tensor bias_E;  // is added to the scores for the router's choice; optional
};

class ExpertSegment : public Segment {
 public:
  ExpertSegment(std::shared_ptr<ExpertLayer> layer, SegmentKind kind)
      : l_(std::move(layer)), id_{kind, l_->layer}, name_(segment_name(id_)) {}
  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return l_->unit; }
  ops::Destination gradient() const override { return {}; }

 protected:
  Device::Scope scope(Step& step) const { return {step.compute.device(), name_}; }

  const std::shared_ptr<ExpertLayer> l_;
  const SegmentId id_;
  const std::string name_;
};

// Orders the tokens by expert. The rows can be sent when this has ended, even if the host enqueues
// other work on compute before it knows their numbers.
void prepare_rows(Step& step, const ExpertLayer& l, ExpertFlow& f, const Tensor& x_TH,
                  const Tensor& expert_TK, const Tensor& weight_TK) {
  f.route = l.dispatcher->route(step, expert_TK, l.capacity(step, expert_TK.dim(0)));
  f.rows = l.dispatcher->to_rows(step, *f.route, x_TH, weight_TK);
  f.rows.ready = step.compute.record();
  if (l.keeps_input()) f.x_TH = x_TH;
}
// Sends the rows to their experts. With chunks, it sends those that travel while the first one is
// waited for.
void send_rows(Step& step, const ExpertLayer& l, ExpertFlow& f) {
  TokenDispatcher& dispatcher = *l.dispatcher;
  const bool sends_inputs = bool(f.inputs.x_RH);
  if (l.in_chunks(step)) {
    f.chunks = dispatcher.in_chunks(step, *f.route, std::exchange(f.rows, {}));
    if (sends_inputs)
      f.input_chunks = dispatcher.in_chunks(step, *f.route, std::exchange(f.inputs, {}));
    send_first_chunks(step, *f.chunks, f.input_chunks.get());
    return;
  }
  f.rows = dispatcher.send(step, *f.route, std::exchange(f.rows, {}));
  if (sends_inputs) f.inputs = dispatcher.send(step, *f.route, std::exchange(f.inputs, {}));
}
// Sends the experts' results back. Chunks have been sent already.
void return_rows(Step& step, const ExpertLayer& l, ExpertFlow& f) {
  if (!f.chunks) f.rows = l.dispatcher->send_back(step, *f.route, std::exchange(f.rows, {}));
}
// Adds the returned gradients to that of the layer's input. Returns the gradients of the weights.
Tensor collect_gradients(Step& step, const ExpertLayer& l, ExpertFlow& f) {
  if (f.shared) f.dx_TH = l.shared->up_backward(step, f.x_TH, *std::exchange(f.shared, {}));
  if (f.chunks) f.rows = std::exchange(f.chunks, {})->returned(step);
  const TokenSums d =
      l.dispatcher->to_tokens(step, *std::exchange(f.route, {}), std::exchange(f.rows, {}));
  if (f.dx_TH)
    ops::add_into(step.compute, d.sum_TH, f.dx_TH);
  else
    f.dx_TH = d.sum_TH;
  return d.weight_TK;
}

struct RouteActivations {
  ops::NormResult norm;  // its output is absent if it is computed again
  Tensor logits_TE;
  ops::Routing routing;
  Tensor kept_TK;  // the choices that fit into the experts' capacity
  Tensor sums_BS;  // the sums that the router's losses need; absent without losses
  Event summed;    // when they include all ranks that share the samples
};

class Route : public ExpertSegment {
 public:
  explicit Route(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::route) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    const spec::Experts& e = l_->experts;
    RouteActivations a = earlier_route(step);
    a.norm = l_->norm.forward(step, flow.h);
    if (!a.logits_TE) {
      a.logits_TE = ops::in_dtype(step.compute,
                                  ops::matmul(step.compute, "matmul_router_fwd", a.norm.y_TH.plain,
                                              l_->router->value, {.b = true}, DType::f32),
                                  e.logits);
      a.routing = ops::route_tokens(step.compute, a.logits_TE, e.per_token, e.form, l_->bias_E,
                                    valid(step), given_choices(step, a.logits_TE.dim(0)));
      if (step.training && step.experts) find_sums(step, a);
      a.kept_TK = kept_choices(step, a);
      keep_for_recomputation(step, a);
    }
    flow.h = {a.norm.sum_TH, {}};
    prepare_rows(step, *l_, flow.experts, a.norm.y_TH.plain, std::exchange(a.kept_TK, {}),
                 a.routing.weight_TK);
    if (!l_->keeps_norm) a.norm.y_TH = {};
    step.stash->push(std::move(a));
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope in = scope(step);
    Stream& stream = step.compute;
    auto a = step.stash->pop<RouteActivations>();
    ExpertFlow& f = flow.experts;
    const Tensor dweight_TK = collect_gradients(step, *l_, f);
    const Tensor y = a.norm.y_TH ? a.norm.y_TH.plain
                     : f.x_TH    ? f.x_TH
                                 : l_->norm.forward(step, {a.norm.sum_TH, {}}).y_TH.plain;
    const Tensor dlogits =
        ops::in_dtype(stream,
                      ops::route_tokens_grad(stream, a.logits_TE, a.routing, dweight_TK,
                                             l_->experts.form, loss_grad(step, a), samples(step)),
                      y.dtype());
    Parameter* const router = l_->router;
    if (!router->frozen)
      step.wgrad.push({[router, &stream, y, dlogits] {
                         ops::weight_gradient_into(stream, "matmul_router_wgrad", dlogits, y,
                                                   router->grad, !router->consume_first_write(),
                                                   {});
                       },
                       {router}});
    ops::add_into(stream,
                  ops::matmul(stream, "matmul_router_dgrad", dlogits, router->value, {}, y.dtype()),
                  f.dx_TH);
    return Flow::backward(l_->norm.backward(step, a.norm, f.dx_TH, flow.d_TH.plain, to));
  }

 private:
  // Return which of this rank's tokens are not padding, and the sample of each if the losses need
  // it and it is not token % B. Under sequence parallelism a rank routes its own rows.
  Tensor valid(const Step& step) const { return own_rows(step.seq.valid_T); }
  Tensor samples(const Step& step) const { return own_rows(step.seq.sample_T); }
  Tensor own_rows(const Tensor& x_T) const { return x_T ? l_->tensor->own_rows(x_T) : Tensor(); }

  // Returns the router's results of the first forward if this recomputation reuses them; else
  // everything is absent.
  RouteActivations earlier_route(Step& step) const {
    if (!l_->keeps_router || !step.forward_results || !step.recomputing) return {};
    MT_CHECK(!step.forward_results->empty(), "a recomputation of more routers than were computed");
    auto a = std::any_cast<RouteActivations>(std::move(step.forward_results->front()));
    step.forward_results->pop_front();
    return a;
  }
  void keep_for_recomputation(Step& step, const RouteActivations& a) const {
    if (!l_->keeps_router || !step.forward_results || step.recomputing) return;
    RouteActivations kept = a;
    kept.norm = {};
    step.forward_results->push_back(std::move(kept));
  }

  // Returns the choices of a benchmark's pattern; absent if the router chooses.
  Tensor given_choices(Step& step, int64_t T) {
    const spec::Experts& e = l_->experts;
    if (l_->pattern == RoutePattern::none) return {};
    Tensor& choices_TK = patterns_TK_[T];
    if (!choices_TK) {
      // They stay, so they must not use memory that graphs write to.
      const device::Allocator::Open outside(step.compute.device().allocator());
      choices_TK =
          Tensor::from_host(step.compute, {T, e.per_token},
                            pattern_choices(l_->pattern, l_->layer, T, e.count, e.per_token));
    }
    return choices_TK;
  }

  // Returns the choices that fit into the experts' capacity. The losses see all choices, and so
  // does the router's gradient: a dropped choice has a weight without a gradient.
  Tensor kept_choices(Step& step, const RouteActivations& a) const {
    const spec::Experts& e = l_->experts;
    const int64_t capacity = l_->capacity(step, a.logits_TE.dim(0));
    if (capacity == 0) return a.routing.expert_TK;
    const bool counts = step.experts && !step.recomputing;
    Tensor dropped_E;
    if (counts) {
      dropped_E = step.experts->dropped(l_->layer, e.count);
    } else {
      dropped_E = Tensor::empty(step.compute, {e.count}, DType::f32);
      ops::fill(step.compute, dropped_E, 0);
    }
    return ops::drop_choices(step.compute, a.routing, capacity, e.drops_lightest, dropped_E);
  }

  // Adds the sums of this rank's tokens to those of the step, unless an earlier forward has done
  // so. They are summed over ranks while the micro-batch continues, and read in its backward. A
  // rank of sequence parallelism has some positions of every sample: row t is of sample t % B here,
  // too, unless samples are packs.
  void find_sums(Step& step, RouteActivations& a) const {
    const spec::Experts& e = l_->experts;
    const Tensor sums_BS = ops::router_sums(step.compute, a.logits_TE, a.routing,
                                            e.loss_coeffs.sample > 0 ? step.seq.samples() : 1,
                                            e.form.score, samples(step));
    if (!step.recomputing)
      ops::column_sum(step.compute, sums_BS, step.experts->sums(l_->layer, e.count));
    if (!e.loss_coeffs.any()) return;
    a.sums_BS = sums_BS;
    if (l_->sum_over_tokens) a.summed = l_->sum_over_tokens(step.compute, sums_BS);
  }

  // Adds the micro-batch's losses to those of the step. Returns their gradient; absent without
  // losses.
  Tensor loss_grad(Step& step, const RouteActivations& a) const {
    if (!a.sums_BS) return {};
    const spec::Experts& e = l_->experts;
    const Tensor& fraction_LE = step.experts->fraction_LE;
    step.compute.wait(a.summed);  // edge: the sums over ranks -> the losses
    return ops::router_losses(
        step.compute, a.sums_BS, e.count, e.per_token, e.loss_coeffs, step.experts->loss_grad,
        step.experts->loss_2,
        fraction_LE ? fraction_LE.flat(l_->layer * e.count, {e.count}) : Tensor(),
        step.graph_inputs ? step.graph_inputs->router_grad_scale() : Tensor());
  }

  std::map<int64_t, Tensor> patterns_TK_;  // the pattern's choices, by the number of tokens
};

class Dispatch : public ExpertSegment {
 public:
  explicit Dispatch(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::dispatch) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    send_rows(step, *l_, flow.experts);
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Destination&) override {
    const Device::Scope in = scope(step);
    return_rows(step, *l_, flow.experts);
    return flow;
  }
};

class Experts : public ExpertSegment {
 public:
  explicit Experts(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::mlp),
        up_(*l_->up_linear),
        down_(*l_->down_linear),
        gemms_{up_, down_, l_->keeps_rows, l_->keeps_activation,
               gate_function(l_->experts.activation)} {}
  ParamUnit* unit() const override { return l_->down->unit; }

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    TokenDispatcher& dispatcher = *l_->dispatcher;
    if (l_->shared_overlaps && l_->shared)
      f.shared = std::make_shared<SharedExpertActivations>(l_->shared->up(step, f.x_TH));
    if (f.chunks) {
      step.stash->push(chunked_forward(step, *f.chunks, gemms_, dispatcher.first_E1(*f.route)));
      return flow;
    }
    const bool unused = l_->unused_rows(step);
    ExpertRows rows = dispatcher.by_expert(step, *f.route, std::exchange(f.rows, {}));
    ExpertActivations a{.weight_R = std::move(rows.weight_R),
                        .first_E1 = dispatcher.first_E1(*f.route)};
    a.x_RH = std::exchange(rows.x_RH, {});
    a.up_R2F = up_.forward(step, up_.input(step, a.x_RH), a.first_E1, unused);
    a.act_RF = ops::weighted_swiglu(step.compute, a.up_R2F, a.weight_R, {}, gemms_.gate);
    rows = {.x_RH = down_.forward(step, down_.input(step, a.act_RF), a.first_E1, unused)};
    f.rows = dispatcher.from_experts(step, *f.route, std::move(rows));
    if (!l_->keeps_activation) a.act_RF.value = {};
    if (!l_->keeps_rows) a.x_RH.value = {}, a.up_R2F = {};
    step.stash->push(std::move(a));
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Destination&) override {
    const Device::Scope in = scope(step);
    auto a = step.stash->pop<ExpertActivations>();
    ExpertFlow& f = flow.experts;
    TokenDispatcher& dispatcher = *l_->dispatcher;
    if (f.shared) l_->shared->down_backward(step, f.x_TH, std::exchange(f.dout_TH, {}), *f.shared);
    if (f.chunks) {
      const auto inputs = std::exchange(f.input_chunks, {});
      chunked_backward(step, *f.chunks, inputs.get(), gemms_, std::move(a));
      return flow;
    }
    const bool unused = l_->unused_rows(step);
    if (!l_->keeps_rows) {
      a.x_RH.value = dispatcher.by_expert(step, *f.route, std::exchange(f.inputs, {})).x_RH;
      a.up_R2F = up_.forward(step, up_.input(step, a.x_RH), a.first_E1, unused);
    }
    ops::Operand dy_RH =
        down_.gradient(step, dispatcher.by_expert(step, *f.route, std::exchange(f.rows, {})).x_RH);
    Tensor dact_RF = down_.dgrad(step, dy_RH, a.first_E1, unused);
    // Unless the activation's output is kept, the kernel overwrites its gradient with it.
    const bool recomputes = !a.act_RF.value;
    ops::WeightedSwigluGradients d =
        ops::weighted_swiglu_backward(step.compute, a.up_R2F, a.weight_R, dact_RF,
                                      recomputes ? dact_RF : Tensor(), {}, gemms_.gate);
    if (recomputes) {
      a.act_RF.value = std::move(dact_RF);
      down_.input(step, a.act_RF);
    }
    dact_RF = {};
    down_.wgrad(step, std::move(dy_RH), std::exchange(a.act_RF, {}).value.operand(), a.first_E1);
    a.up_R2F = {};
    ops::Operand dup_R2F = up_.gradient(step, std::exchange(d.dgate_up_R2F, {}));
    f.rows = dispatcher.from_experts(
        step, *f.route,
        {.x_RH = up_.dgrad(step, dup_R2F, a.first_E1, unused), .weight_R = d.dweight_R});
    f.rows.ready = step.compute.record();  // they need not wait for the weight gradients
    up_.wgrad(step, std::move(dup_R2F), std::exchange(a.x_RH, {}).value.operand(), a.first_E1);
    return flow;
  }

 private:
  const ExpertLinear &up_, &down_;
  const ExpertGemms gemms_;
};

class Combine : public ExpertSegment {
 public:
  explicit Combine(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::combine) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    return_rows(step, *l_, flow.experts);
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Destination&) override {
    const Device::Scope in = scope(step);
    send_rows(step, *l_, flow.experts);
    return flow;
  }
};

struct MergeActivations {
  std::shared_ptr<TokenRoute> route;
  // If a pass needs the norm's output, it is kept in x_TH, or computed again from sum_TH, the
  // residual stream.
  Tensor x_TH, sum_TH;
  ops::NormResult out;  // the norm of the layer's output, without its result
};

class Merge : public ExpertSegment {
 public:
  explicit Merge(std::shared_ptr<ExpertLayer> layer)
      : ExpertSegment(std::move(layer), SegmentKind::merge) {}

  Flow forward(Step& step, Flow flow) override {
    const Device::Scope in = scope(step);
    ExpertFlow f = std::exchange(flow.experts, {});
    MergeActivations a{.route = f.route};
    Tensor shared_TH;
    if (l_->shared)
      shared_TH = l_->shared->down(step, f.x_TH,
                                   f.shared ? std::move(*f.shared) : l_->shared->up(step, f.x_TH));
    if (l_->keeps_input()) {
      a.x_TH = l_->keeps_norm ? f.x_TH : Tensor();
      a.sum_TH = flow.h.x_TH;
    }
    // Waits for the experts' rows, which may travel while the shared expert computes.
    if (f.chunks) f.rows = f.chunks->returned(step);
    Tensor out_TH = l_->dispatcher->to_tokens(step, *f.route, std::move(f.rows)).sum_TH;
    if (shared_TH) ops::add_into(step.compute, shared_TH, out_TH);
    flow.h.delta_TH = l_->output->forward(step, out_TH, a.out);
    step.stash->push(std::move(a));
    return flow;
  }

  Flow backward(Step& step, Flow flow, const ops::Destination&) override {
    const Device::Scope in = scope(step);
    ExpertFlow& f = flow.experts;
    auto a = step.stash->pop<MergeActivations>();
    const Tensor dout_TH = l_->output->backward(step, flow.d_TH, a.out, nullptr).plain;
    a.out = {};
    f.route = a.route;
    f.rows = l_->dispatcher->to_rows(step, *f.route, dout_TH, {});
    if (!l_->keeps_input()) return flow;
    f.x_TH = a.x_TH ? a.x_TH : l_->norm.forward(step, {a.sum_TH, {}}).y_TH.plain;
    // Tokens travel to the rows of their experts' input as gradients do to those of its output.
    if (!l_->keeps_rows) f.inputs = l_->dispatcher->to_rows(step, *f.route, f.x_TH, {});
    if (!l_->shared) return flow;
    auto shared = step.stash->pop<SharedExpertActivations>();
    if (l_->shared_overlaps) {
      f.shared = std::make_shared<SharedExpertActivations>(std::move(shared));
      f.dout_TH = dout_TH;
      return flow;
    }
    l_->shared->down_backward(step, f.x_TH, dout_TH, shared);
    f.dx_TH = l_->shared->up_backward(step, f.x_TH, shared);
    return flow;
  }
};

}  // namespace

std::vector<std::unique_ptr<Segment>> expert_segments(ParamStore& params,
                                                      const spec::ModelSpec& model,
                                                      const spec::Experts& experts, int64_t layer,
                                                      const Recompute& recompute,
                                                      const ModelImpls& impls) {
  const auto shared =
      std::make_shared<ExpertLayer>(params, model, experts, layer, recompute, impls);
  std::vector<std::unique_ptr<Segment>> all;
  all.push_back(std::make_unique<Route>(shared));
  all.push_back(std::make_unique<Dispatch>(shared));
  all.push_back(std::make_unique<Experts>(shared));
  all.push_back(std::make_unique<Combine>(shared));
  all.push_back(std::make_unique<Merge>(shared));
  return all;
}

}  // namespace mtrain::model
