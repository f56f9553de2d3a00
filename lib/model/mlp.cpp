#include "model/mlp.h"

#include <cmath>

#include "device/device.h"

namespace mtrain::model {

namespace {

struct MlpActivations {
  ops::NormResult norm;  // its output is absent if it is computed again
  // The up projection's output; (T, 2 F), gate | up, if gated. It is absent if it is recomputed.
  Tensor up_TF;
  Tensor act_TF;  // the activation's output; absent if it is computed again
  InputScale up_scale, down_scale;
};

class MlpSegment : public Segment {
 public:
  MlpSegment(ParamStore& params, const GptConfig& c, int64_t layer, const Recompute& recompute,
             const ModelImpls& impls)
      : c_(c),
        recompute_(recompute.mlp),
        keep_norm_(!recompute.cheap && !recompute.norms),
        keep_activation_(!recompute.cheap && !recompute.mlp && !gelu_in_gemms()),
        id_{SegmentKind::mlp, layer},
        name_(segment_name(id_)),
        tensor_(impls.tensor),
        norm_(params, {UnitKind::layer, layer}, name_ + ".norm", c, *tensor_) {
    const UnitId unit{UnitKind::layer, layer};
    std::vector<ShardSpec::Section> sections{{c.ffn, 1}};
    if (c.gated_mlp) sections.push_back({c.ffn, 1});  // gate | up
    up_ = tensor_->column_linear(params, {.unit = unit,
                                          .name = name_ + (c.gated_mlp ? ".gate_up" : ".up"),
                                          .I = c.hidden,
                                          .O = (c.gated_mlp ? 2 : 1) * c.ffn,
                                          .bias = c.linear_bias,
                                          .std = c.init_std,
                                          .gemm = LayerGemm::fc1,
                                          .sections = sections,
                                          .fp8 = impls.fp8_of(layer)});
    down_ = tensor_->row_linear(params, {.unit = unit,
                                         .name = name_ + ".down",
                                         .I = c.ffn,
                                         .O = c.hidden,
                                         .bias = c.linear_bias,
                                         .std = c.init_std / std::sqrt(2.0f * float(c.layers)),
                                         .gemm = LayerGemm::fc2,
                                         .fp8 = impls.fp8_of(layer)});
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return norm_.unit(); }

  Hidden forward(Step& step, const Hidden& h) override {
    const Device::Scope scope(step.compute.device(), name_);
    MlpActivations a;
    a.up_scale.amax = up_->input_amax(), a.down_scale.amax = down_->input_amax();
    a.norm = norm_.forward(step, h, a.up_scale.amax);
    Tensor act_TF;
    if (gelu_in_gemms()) {
      const GeluOutput up = up_->forward_gelu(step, a.norm.y_TH, a.up_scale, a.down_scale.amax);
      a.up_TF = up.y_TO, act_TF = up.gelu_TO;
    } else {
      a.up_TF = up_->forward(step, a.norm.y_TH, a.up_scale);
      act_TF = c_.gated_mlp ? ops::swiglu(step.compute, a.up_TF, a.down_scale.amax)
                            : ops::gelu(step.compute, a.up_TF, false, a.down_scale.amax);
    }
    if (!keep_norm_) a.norm.y_TH = {};
    if (recompute_) a.up_TF = {};
    if (keep_activation_) a.act_TF = act_TF;
    const Hidden out{a.norm.sum_TH, down_->forward(step, act_TF, a.down_scale)};
    drop(step, out.delta_TH, id_, c_.hidden_dropout, tensor_->first_row(step.seq.T()));
    step.stash.push(std::move(a));
    return out;
  }

  Tensor gradient_amax() const override {
    return c_.hidden_dropout > 0 ? Tensor() : down_->gradient_amax();
  }

  Tensor backward(Step& step, const HiddenGradient& d, const Tensor& amax) override {
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash.pop<MlpActivations>();
    Tensor y = a.norm.y_TH;
    if (recompute_) {
      if (!y) y = norm_.forward(step, {a.norm.sum_TH, {}}).y_TH;
      // The same call as in forward, since a GEMM with gelu may round otherwise than one without.
      a.up_TF = gelu_in_gemms() ? up_->forward_gelu(step, y, a.up_scale, {}).y_TO
                                : up_->forward(step, y, a.up_scale);
    }
    const Tensor dup_amax = up_->gradient_amax();
    ActivationGradient g = activation_backward(
        step,
        {drop_backward(step, d.d_TH, id_, c_.hidden_dropout, tensor_->first_row(step.seq.T())),
         d.amax},
        a, dup_amax);
    // Tensors that are not needed any more give their memory back: under sequence parallelism the
    // gradient for wgrad has the rows of all ranks.
    down_->wgrad(step, g.act_TF, a.down_scale, std::move(g.for_wgrad));
    a.up_TF = {}, a.act_TF = {}, g.act_TF = {};
    if (!y) y = norm_.forward(step, {a.norm.sum_TH, {}}).y_TH;
    const Tensor dy = up_->backward(step, y, a.up_scale, std::move(g.dup_TF), dup_amax);
    return norm_.backward(step, a.norm, dy, d.d_TH, amax);
  }

 private:
  struct ActivationGradient {
    Tensor dup_TF;             // gradient of the up projection's output
    Tensor act_TF;             // the activation's output, kept or computed again
    OutputGradient for_wgrad;  // for the down projection's wgrad()
  };

  bool gelu_in_gemms() const { return !c_.gated_mlp && c_.gelu_tanh; }

  // Takes the gradient back through the down projection and the activation. `amax` gets the largest
  // size of the activation's gradient.
  ActivationGradient activation_backward(Step& step, HiddenGradient d, const MlpActivations& a,
                                         const Tensor& amax) {
    if (gelu_in_gemms()) {
      GeluInputGradient g = down_->dgrad_gelu(step, std::move(d.d_TH), d.amax, a.up_TF, amax);
      return {g.du_TI, g.gelu_TI, std::move(g.for_wgrad)};
    }
    InputGradient g = down_->dgrad(step, std::move(d.d_TH), d.amax);
    // Unless the activation's output is kept, the kernels overwrite its gradient with it.
    const Tensor dact_TF = g.dx_TI, again_TF = a.act_TF ? Tensor() : dact_TF;
    const Tensor dup_TF =
        c_.gated_mlp ? ops::swiglu_backward(step.compute, a.up_TF, dact_TF, again_TF, amax)
                     : ops::gelu_backward(step.compute, a.up_TF, dact_TF, again_TF, false, amax);
    return {dup_TF, a.act_TF ? a.act_TF : dact_TF, std::move(g.for_wgrad)};
  }

  GptConfig c_;
  const bool recompute_, keep_norm_, keep_activation_;
  const SegmentId id_;
  const std::string name_;  // names the scope in error messages, and starts the parameters' names
  std::shared_ptr<TensorParallel> tensor_;
  Norm norm_;
  std::unique_ptr<Linear> up_, down_;
};

}  // namespace

std::unique_ptr<Segment> mlp_segment(ParamStore& params, const GptConfig& c, int64_t layer,
                                     const Recompute& recompute, const ModelImpls& impls) {
  return std::make_unique<MlpSegment>(params, c, layer, recompute, impls);
}

}  // namespace mtrain::model
