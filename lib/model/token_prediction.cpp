#include "model/token_prediction.h"

#include <string>
#include <utility>

#include "device/device.h"
#include "model/linear.h"
#include "model/lora_linear.h"
#include "model/norm.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"

namespace mtrain::model {

namespace {

std::string tensor_prefix(int64_t layer) { return "layers." + std::to_string(layer) + ".mtp."; }

size_t index_of(const Step& step) {
  MT_CHECK(step.predictions && step.depth > 0 && step.depth <= step.predictions->depths(),
           "depth {} of a prediction", step.depth);
  return size_t(step.depth - 1);
}

struct InputActivations {
  Tensor id_T;
  ops::NormResult embedding, hidden;  // without their outputs, which are proj's input
  LinearOperand x;
};

class PredictionInput : public Segment {
 public:
  PredictionInput(ParamStore& params, const spec::ModelSpec& model, int64_t layer,
                  const ModelImpls& impls, const SharedByDepths& shared)
      : id_{SegmentKind::prediction_input, layer},
        name_(segment_name(id_)),
        shared_(shared),
        H_(model.hidden),
        embedding_norm_(params, unit_id(), spec::layer_tensors(model, layer),
                        tensor_prefix(layer) + "embedding_norm", model.norm, *impls.tensor),
        hidden_norm_(params, unit_id(), spec::layer_tensors(model, layer),
                     tensor_prefix(layer) + "hidden_norm", model.norm, *impls.tensor),
        proj_(make_linear(
            params,
            LinearSpec(unit_id(), spec::layer_tensors(model, layer), tensor_prefix(layer) + "proj",
                       LayerGemm::fc1, impls.quantizer_of(layer)),
            LinearSide::whole, model, impls.tensor)),
        unit_(params.unit(unit_id())) {}

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return unit_; }
  ops::Destination gradient() const override { return {}; }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    Stream& stream = step.compute;
    ParamHooks& hooks = step.param_hooks();
    InputActivations a;
    a.id_T = step.predictions->input_T[index_of(step)];
    ParamUnit& table = *shared_.embedding->table()->unit;
    hooks.before_forward(table);
    const Tensor e_TH = shared_.embedding->forward(step, a.id_T, id_);
    hooks.after_forward(table);
    a.embedding = embedding_norm_.forward(step, {e_TH, {}});
    a.hidden = hidden_norm_.forward(step, in.h);
    const Tensor left_TH = std::exchange(a.embedding.y_TH, {}).plain,
                 right_TH = std::exchange(a.hidden.y_TH, {}).plain;
    const Tensor both = Tensor::empty(stream, {left_TH.dim(0), 2 * H_}, left_TH.dtype());
    ops::copy_blocks(stream, left_TH, both, {half(left_TH.dim(0), 0, 0)});
    ops::copy_blocks(stream, right_TH, both, {half(left_TH.dim(0), 0, H_)});
    a.x = ops::Written(both);
    const Tensor x_TH = proj_->forward(step, a.x);
    step.stash->push(std::move(a));
    return Flow::forward({x_TH, {}});
  }

  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope scope(step.compute.device(), name_);
    Stream& stream = step.compute;
    auto a = step.stash->pop<InputActivations>();
    const Tensor d = proj_->backward(step, std::move(a.x), flow.d_TH.plain);
    const int64_t T = d.dim(0);
    const Tensor de_TH = Tensor::empty(stream, {T, H_}, d.dtype()),
                 dh_TH = Tensor::empty(stream, {T, H_}, d.dtype());
    ops::copy_blocks(stream, d, de_TH, {half(T, 0, 0)});
    ops::copy_blocks(stream, d, dh_TH, {half(T, H_, 0)});
    ops::Written dh = hidden_norm_.backward(step, a.hidden, dh_TH, {}, to);
    const Tensor de = embedding_norm_.backward(step, a.embedding, de_TH, {}, {}).plain;
    add_to_table(step, a.id_T, de);
    return Flow::backward(std::move(dh));
  }

 private:
  UnitId unit_id() const { return {UnitKind::layer, id_.layer}; }

  ops::CopyBlock half(int64_t rows, int64_t from, int64_t to) const {
    return {.from_row = 0,
            .from_column = from,
            .to_row = 0,
            .to_column = to,
            .rows = rows,
            .columns = H_};
  }

  // Depth 1 is the last one in backward.
  void add_to_table(Step& step, const Tensor& id_T, const Tensor& d_TH) {
    ParamHooks& hooks = step.param_hooks();
    ParamUnit& table = *shared_.embedding->table()->unit;
    const bool last = shared_.copied && step.depth == 1;
    last ? hooks.before_backward(table) : hooks.before_grads(table);
    shared_.embedding->add_gradient(step, id_T, d_TH, id_, last);
    if (last) hooks.after_backward(table);
  }

  const SegmentId id_;
  const std::string name_;
  const SharedByDepths& shared_;
  const int64_t H_;
  Norm embedding_norm_, hidden_norm_;
  std::unique_ptr<Linear> proj_;
  ParamUnit* unit_;
};

struct OutputActivations {
  ops::NormResult norm;  // without its output
  // The gradient of this depth's loss with respect to that output; absent if another stage computes
  // it.
  Tensor dy_TH;
};

class PredictionOutput : public Segment {
 public:
  PredictionOutput(ParamStore& params, const spec::ModelSpec& model, int64_t layer,
                   const ModelImpls& impls, const SharedByDepths& shared)
      : id_{SegmentKind::prediction_output, layer},
        name_(segment_name(id_)),
        shared_(shared),
        norm_(params, {UnitKind::layer, layer}, spec::layer_tensors(model, layer),
              tensor_prefix(layer) + "final_norm", model.norm, *impls.tensor) {}

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return norm_.unit(); }
  ops::Destination gradient() const override { return {}; }

  // The first forward computes the loss and its gradient. A recomputation has both from it.
  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    OutputActivations a;
    a.norm = norm_.forward(step, in.h);
    const Tensor y_TH = std::exchange(a.norm.y_TH, {}).plain;
    if (shared_.head && step.recomputing) {
      MT_CHECK(!step.forward_results->empty(), "a recomputation of a loss that is unknown");
      a.dy_TH = std::any_cast<Tensor>(std::move(step.forward_results->front()));
      step.forward_results->pop_front();
    } else if (shared_.head) {
      a.dy_TH = loss(step, y_TH);
      if (step.forward_results) step.forward_results->emplace_back(a.dy_TH);
    }
    step.stash->push(std::move(a));
    return Flow::forward({y_TH, {}});
  }

  // `flow` has the gradient from the next depth, and from another stage's loss, if there is one.
  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope scope(step.compute.device(), name_);
    const auto a = step.stash->pop<OutputActivations>();
    const Tensor dy_TH = a.dy_TH ? a.dy_TH : flow.d_TH.plain;
    if (a.dy_TH && flow.d_TH.plain) ops::add_into(step.compute, flow.d_TH.plain, dy_TH);
    return Flow::backward(norm_.backward(step, a.norm, dy_TH, {}, to));
  }

 private:
  Tensor loss(Step& step, const Tensor& y_TH) {
    ParamHooks& hooks = step.param_hooks();
    ParamUnit& table = *shared_.head->output_unit();
    if (shared_.tied) hooks.before_forward(table), hooks.before_grads(table);
    const size_t k = index_of(step);
    const bool last = step.depth == step.predictions->depths();
    const Tensor dy_TH =
        shared_.head->output_loss(step, y_TH, step.predictions->losses.at(k), last);
    if (shared_.tied) hooks.after_forward(table);
    return dy_TH;
  }

  const SegmentId id_;
  const std::string name_;
  const SharedByDepths& shared_;
  Norm norm_;
};

}  // namespace

std::unique_ptr<Segment> prediction_input(ParamStore& params, const spec::ModelSpec& model,
                                          int64_t layer, const ModelImpls& impls,
                                          const SharedByDepths& shared) {
  return std::make_unique<PredictionInput>(params, model, layer, impls, shared);
}

std::unique_ptr<Segment> prediction_output(ParamStore& params, const spec::ModelSpec& model,
                                           int64_t layer, const ModelImpls& impls,
                                           const SharedByDepths& shared) {
  return std::make_unique<PredictionOutput>(params, model, layer, impls, shared);
}

}  // namespace mtrain::model
