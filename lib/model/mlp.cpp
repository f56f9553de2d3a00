#include "model/mlp.h"

#include <optional>

#include "device/device.h"
#include "model/gate_function.h"
#include "model/lora_linear.h"
#include "model/segment_norms.h"
#include "ops/activation.h"
#include "ops/norm.h"

namespace mtrain::model {

namespace {

struct MlpActivations {
  ops::NormResult norm;  // without its output, which is the up projection's input
  // The up projection's output; (T, 2 F), gate | up, if gated. It is absent if it is recomputed.
  Tensor up_TF;
  // The inputs of the projections, without values that are computed again.
  LinearOperand up_in, down_in;
  ops::NormResult out;  // the norm of the segment's output, without its result
};

class MlpSegment : public Segment {
 public:
  MlpSegment(ParamStore& params, const spec::ModelSpec& model, const spec::DenseMlp& mlp,
             int64_t layer, const Recompute& recompute, const ModelImpls& impls)
      : mlp_(mlp),
        recompute_(recompute.mlp),
        keep_norm_(!recompute.cheap && !recompute.norms),
        keep_activation_(!recompute.cheap && !recompute.mlp && !gelu_in_gemms()),
        id_{SegmentKind::mlp, layer},
        name_(segment_name(id_)),
        tensor_(impls.tensor),
        norm_(params, {UnitKind::layer, layer}, spec::layer_tensors(model, layer), name_,
              model.norm, *tensor_) {
    const UnitId unit{UnitKind::layer, layer};
    const std::vector<spec::TensorSpec> tensors = spec::layer_tensors(model, layer);
    const std::shared_ptr<Quantizer> quantizer = impls.quantizer_of(layer);
    const std::string up = name_ + (mlp.gated() ? ".gate_up" : ".up");
    up_ = make_linear(params, {unit, tensors, up, LayerGemm::fc1, quantizer}, LinearSide::column,
                      model, tensor_);
    down_ = make_linear(params, {unit, tensors, name_ + ".down", LayerGemm::fc2, quantizer},
                        LinearSide::row, model, tensor_);
    output_.emplace(params, unit, tensors, name_, model, tensor_, id_);
    unit_ = params.unit(unit);
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return unit_; }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    MlpActivations a;
    const ops::Destination down = down_->input(step.training);
    a.norm = norm_.forward(step, in.h, up_->input(step.training));
    a.up_in = std::exchange(a.norm.y_TH, {});
    if (gelu_in_gemms()) {
      GeluOutput up = up_->forward_gelu(step, a.up_in, down);
      a.up_TF = up.y_TO, a.down_in = std::move(up.gelu_TO);
    } else {
      a.up_TF = up_->forward(step, a.up_in);
      a.down_in = mlp_.gated()
                      ? ops::swiglu(step.compute, a.up_TF, down, gate_function(mlp_.activation))
                      : ops::gelu(step.compute, a.up_TF, false, down);
    }
    if (!keep_norm_) a.up_in.value = {};
    if (recompute_) a.up_TF = {};
    const Tensor out_TH = down_->forward(step, a.down_in);
    if (!keep_activation_) a.down_in.value = {};
    Hidden out{a.norm.sum_TH, output_->forward(step, out_TH, a.out)};
    step.stash->push(std::move(a));
    return Flow::forward(std::move(out));
  }

  ops::Destination gradient() const override { return output_->gradient(*down_); }

  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash->pop<MlpActivations>();
    if (recompute_) {
      recompute_norm(step, a);
      // The same call as in forward, since a GEMM with gelu may round differently from one without.
      a.up_TF =
          gelu_in_gemms() ? up_->forward_gelu(step, a.up_in, {}).y_TO : up_->forward(step, a.up_in);
    }
    ProjectionGradients g =
        activation_backward(step, output_->backward(step, flow.d_TH, a.out, down_.get()), a);
    // Tensors that are not needed any more free their memory: under sequence parallelism the
    // gradient for wgrad has the rows of all ranks.
    down_->wgrad(step, std::move(a.down_in), std::move(g.down));
    a.up_TF = {}, a.out = {};
    recompute_norm(step, a);
    const Tensor dy = up_->backward(step, std::move(a.up_in), std::move(g.up));
    return Flow::backward(norm_.backward(step, a.norm, dy, flow.d_TH.plain, to));
  }

 private:
  // The gradients of the outputs of both projections.
  struct ProjectionGradients {
    ops::Written up;
    LinearOperand down;  // for wgrad()
  };

  bool gelu_in_gemms() const { return mlp_.activation == spec::Activation::gelu_tanh; }

  // Computes the norm's output again, if it is absent.
  void recompute_norm(Step& step, MlpActivations& a) const {
    if (!a.up_in.value)
      a.up_in.value = norm_.forward(step, {a.norm.sum_TH, {}}, a.up_in.rewrite).y_TH;
  }

  // Backward of the down projection and of the activation. If the activation's output was not kept,
  // the kernels also compute it again, for the weight gradient.
  ProjectionGradients activation_backward(Step& step, LinearOperand d, MlpActivations& a) {
    const ops::Destination to = up_->gradient();
    LinearOperand& act = a.down_in;
    if (gelu_in_gemms()) {
      GeluInputGradient g = down_->dgrad_gelu(step, std::move(d), a.up_TF, to);
      act.value = std::move(g.gelu_TI);
      return {std::move(g.du_TI), std::move(g.dy)};
    }
    InputGradient g = down_->dgrad(step, std::move(d));
    const bool recomputes = !act.value;
    if (mlp_.gated()) {
      ops::ActivationGradient up =
          ops::swiglu_backward(step.compute, a.up_TF, g.dx_TI, to,
                               recomputes ? &act.rewrite : nullptr, gate_function(mlp_.activation));
      if (recomputes) act.value = std::move(up.y);
      return {std::move(up.dx), std::move(g.dy)};
    }
    ops::Written up = ops::gelu_backward(step.compute, a.up_TF, g.dx_TI,
                                         recomputes ? g.dx_TI : Tensor(), false, to);
    if (recomputes) act.value = g.dx_TI;
    return {std::move(up), std::move(g.dy)};
  }

  const spec::DenseMlp mlp_;
  const bool recompute_, keep_norm_, keep_activation_;
  const SegmentId id_;
  const std::string name_;  // names the scope in error messages, and starts the parameters' names
  std::shared_ptr<TensorParallel> tensor_;
  InputNorm norm_;
  std::unique_ptr<Linear> up_, down_;
  std::optional<SegmentOutput> output_;
  ParamUnit* unit_ = nullptr;
};

}  // namespace

std::unique_ptr<Segment> mlp_segment(ParamStore& params, const spec::ModelSpec& model,
                                     const spec::DenseMlp& mlp, int64_t layer,
                                     const Recompute& recompute, const ModelImpls& impls) {
  return std::make_unique<MlpSegment>(params, model, mlp, layer, recompute, impls);
}

}  // namespace mtrain::model
