#include "model/mlp.h"

#include <cmath>
#include <optional>

#include "device/device.h"
#include "model/gate_function.h"
#include "model/segment_norms.h"

namespace mtrain::model {

namespace {

struct MlpActivations {
  ops::NormResult norm;  // its output is absent if it is computed again
  // The up projection's output; (T, 2 F), gate | up, if gated. It is absent if it is recomputed.
  Tensor up_TF;
  Tensor act_TF;  // the activation's output; absent if it is computed again
  InputScale up_scale, down_scale;
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
        norm_(params, {UnitKind::layer, layer}, name_, model, model.layer(layer), *tensor_) {
    const UnitId unit{UnitKind::layer, layer};
    const int64_t F = mlp.ffn;
    const auto std = float(model.init_std);
    std::vector<ShardSpec::Section> sections{{F, 1}};
    if (mlp.gated()) sections.push_back({F, 1});  // gate | up
    up_ = tensor_->column_linear(params, {.unit = unit,
                                          .name = name_ + (mlp.gated() ? ".gate_up" : ".up"),
                                          .I = model.hidden,
                                          .O = (mlp.gated() ? 2 : 1) * F,
                                          .bias = mlp.bias,
                                          .std = std,
                                          .gemm = LayerGemm::fc1,
                                          .sections = sections,
                                          .fp8 = impls.fp8_of(layer)});
    down_ = tensor_->row_linear(params, {.unit = unit,
                                         .name = name_ + ".down",
                                         .I = F,
                                         .O = model.hidden,
                                         .bias = mlp.bias,
                                         .std = std / std::sqrt(2.0f * float(model.layer_count())),
                                         .gemm = LayerGemm::fc2,
                                         .fp8 = impls.fp8_of(layer)});
    output_.emplace(params, unit, name_, model, model.layer(layer), tensor_, id_);
    unit_ = params.unit(unit);
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return unit_; }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    MlpActivations a;
    const ops::Float8Write up_write = norm_.write(up_->input_write(step.training)),
                           down_write = activation_write(down_->input_write(step.training));
    a.up_scale = InputScale(up_write), a.down_scale = InputScale(down_write);
    a.norm = norm_.forward(step, in.h, up_write);
    Tensor act_TF;
    if (gelu_in_gemms()) {
      const GeluOutput up = up_->forward_gelu(step, a.norm.y_TH, a.up_scale, down_write.amax);
      a.up_TF = up.y_TO, act_TF = up.gelu_TO;
    } else {
      a.up_TF = up_->forward(step, a.norm.y_TH, a.up_scale);
      act_TF = mlp_.gated()
                   ? ops::swiglu(step.compute, a.up_TF, down_write, gate_function(mlp_.activation))
                   : ops::gelu(step.compute, a.up_TF, false, down_write.amax);
    }
    if (!keep_norm_) a.norm.y_TH = {};
    if (recompute_) a.up_TF = {};
    if (keep_activation_) a.act_TF = act_TF;
    const Tensor out_TH = down_->forward(step, act_TF, a.down_scale);
    Hidden out{a.norm.sum_TH, output_->forward(step, out_TH, a.out)};
    step.stash->push(std::move(a));
    return Flow::forward(std::move(out));
  }

  ops::Float8Write gradient_write() const override { return output_->gradient_write(*down_); }

  Flow backward(Step& step, Flow flow, const ops::Float8Write& write) override {
    const HiddenGradient& d = flow.d;
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash->pop<MlpActivations>();
    Tensor y = a.norm.y_TH;
    if (recompute_) {
      if (!y) y = norm_again(step, a);
      // The same call as in forward, since a GEMM with gelu may round otherwise than one without.
      a.up_TF = gelu_in_gemms() ? up_->forward_gelu(step, y, a.up_scale, {}).y_TO
                                : up_->forward(step, y, a.up_scale);
    }
    ActivationGradient g =
        activation_backward(step, output_->backward(step, d, a.out, down_.get()), a);
    // Tensors that are not needed any more give their memory back: under sequence parallelism the
    // gradient for wgrad has the rows of all ranks.
    down_->wgrad(step, g.act_TF, a.down_scale, std::move(g.for_wgrad));
    a.up_TF = {}, a.act_TF = {}, g.act_TF = {}, a.out = {};
    if (!y) y = norm_again(step, a);
    const Tensor dy = up_->backward(step, y, a.up_scale, std::move(g.dup));
    return Flow::backward(norm_.backward(step, a.norm, dy, d.d_TH, write));
  }

 private:
  struct ActivationGradient {
    WrittenGradient dup;       // gradient of the up projection's output
    Tensor act_TF;             // the activation's output, kept or computed again
    OutputGradient for_wgrad;  // for the down projection's wgrad()
  };

  bool gelu_in_gemms() const { return mlp_.activation == spec::Activation::gelu_tanh; }

  // Returns what of a linear's wish the activation's kernels can do: those of gelu only leave
  // maxima.
  ops::Float8Write activation_write(const ops::Float8Write& wish) const {
    return mlp_.gated() || !wish.in_8_bits() ? wish : ops::Float8Write{};
  }
  Tensor norm_again(Step& step, const MlpActivations& a) const {
    return norm_.forward(step, {a.norm.sum_TH, {}}, a.up_scale.again).y_TH;
  }

  // Takes the gradient back through the down projection and the activation.
  ActivationGradient activation_backward(Step& step, WrittenGradient d, const MlpActivations& a) {
    ops::Float8Write write = activation_write(up_->gradient_write());
    if (write.in_8_bits() && mlp_.bias) write = {};  // the bias's gradient needs all bits
    if (gelu_in_gemms()) {
      GeluInputGradient g = down_->dgrad_gelu(step, std::move(d), a.up_TF, write.amax);
      return {{g.du_TI, write}, g.gelu_TI, std::move(g.for_wgrad)};
    }
    InputGradient g = down_->dgrad(step, std::move(d));
    // Unless the activation's output is kept, the kernels compute it again. In 8 bits it has memory
    // of its own, else it overwrites its gradient.
    const Tensor dact_TF = g.dx_TI;
    const ops::Float8Write& again = a.down_scale.again;
    const Tensor again_TF = a.act_TF ? Tensor()
                            : again.in_8_bits()
                                ? Tensor::empty(step.compute, dact_TF.shape(), again.type)
                                : dact_TF;
    const Tensor dup_TF =
        mlp_.gated()
            ? ops::swiglu_backward(step.compute, a.up_TF, dact_TF, again_TF, write, again.scale,
                                   gate_function(mlp_.activation))
            : ops::gelu_backward(step.compute, a.up_TF, dact_TF, again_TF, false, write.amax);
    WrittenGradient dup =
        write.in_8_bits() ? WrittenGradient{{}, write, dup_TF} : WrittenGradient{dup_TF, write};
    return {std::move(dup), a.act_TF ? a.act_TF : again_TF, std::move(g.for_wgrad)};
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
