#include "model/mlp.h"

#include <cmath>

#include "device/device.h"

namespace mtrain {

namespace {

struct MlpActivations {
  ops::NormResult norm;  // without its output, as in the attention segment
  Tensor up_TF;  // (T, 2 F) gate | up where gated. The activation's output is computed again in
                 // backward: cheaper than keeping it.
};

class MlpSegment : public Segment {
 public:
  MlpSegment(ParamStore& params, const GptConfig& c, int64_t layer, const ModelParts& parts)
      : c_(c),
        id_{SegmentKind::mlp, layer},
        name_(segment_name(id_)),
        tensor_(parts.tensor),
        norm_(params, {UnitKind::layer, layer}, name_ + ".norm", c, *tensor_) {
    const UnitId unit{UnitKind::layer, layer};
    std::vector<Cut::Section> sections{{c.ffn, 1}};
    if (c.gated_mlp) sections.push_back({c.ffn, 1});  // gate | up
    up_ = tensor_->column_linear(params,
                                 {unit,
                                  name_ + (c.gated_mlp ? ".gate_up" : ".up"),
                                  c.hidden,
                                  (c.gated_mlp ? 2 : 1) * c.ffn,
                                  c.linear_bias,
                                  c.init_std,
                                  {"fc1", "matmul_fc1_fwd", "matmul_fc1_dgrad", "matmul_fc1_wgrad"},
                                  sections,
                                  parts.fp8});
    down_ = tensor_->row_linear(params,
                                {unit,
                                 name_ + ".down",
                                 c.ffn,
                                 c.hidden,
                                 c.linear_bias,
                                 c.init_std / std::sqrt(2.0f * float(c.layers)),
                                 {"fc2", "matmul_fc2_fwd", "matmul_fc2_dgrad", "matmul_fc2_wgrad"},
                                 {},
                                 parts.fp8});
  }

  SegmentKind kind() const override { return id_.kind; }

  Hidden forward(Step& step, const Hidden& h) override {
    const Device::Scope scope(step.compute.device(), name_);
    MlpActivations a;
    a.norm = norm_.forward(step, h);
    Tensor act_TF;
    if (gelu_in_products()) {
      const auto r = up_->forward_gelu(step, a.norm.y_TH);
      a.up_TF = r.x_MN, act_TF = r.y_MN;
    } else {
      a.up_TF = up_->forward(step, a.norm.y_TH);
      act_TF = c_.gated_mlp ? ops::swiglu(step.compute, a.up_TF)
                            : ops::gelu(step.compute, a.up_TF, false);
    }
    a.norm.y_TH = {};
    const Hidden out{a.norm.sum_TH, down_->forward(step, act_TF)};
    drop(step, out.delta_TH, id_, c_.hidden_dropout, tensor_->first_row(step.seq.T()));
    step.stash.push(std::move(a));
    return out;
  }

  Tensor backward(Step& step, const Tensor& d_TH) override {
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash.pop<MlpActivations>();
    OutputGradient ddown{
        drop_backward(step, d_TH, id_, c_.hidden_dropout, tensor_->first_row(step.seq.T()))};
    Tensor act_TF, dup_TF;  // the activation again, for wgrad
    if (gelu_in_products()) {
      const auto g = down_->dgrad_gelu(step, ddown, a.up_TF);
      dup_TF = g.dx_MN, act_TF = g.y_MN;
    } else {
      const Tensor dact_TF = act_TF = down_->dgrad(step, ddown);  // which the kernels overwrite
      dup_TF = c_.gated_mlp ? ops::swiglu_backward(step.compute, a.up_TF, dact_TF, act_TF)
                            : ops::gelu_backward(step.compute, a.up_TF, dact_TF, act_TF, false);
    }
    down_->wgrad(step, act_TF, ddown);
    // Memory that the rest needs: under sequence parallelism ddown is of all ranks' tokens.
    a.up_TF = {}, act_TF = {}, ddown = {};
    const Tensor y = norm_.forward(step, {a.norm.sum_TH, {}}).y_TH;
    const Tensor dy = up_->backward(step, y, {std::move(dup_TF)});
    return norm_.backward(step, a.norm, dy, d_TH);
  }

 private:
  bool gelu_in_products() const { return !c_.gated_mlp && c_.gelu_tanh; }

  GptConfig c_;
  const SegmentId id_;
  const std::string name_;  // the scope of failures, and the beginning of parameters' names
  std::shared_ptr<TensorParallel> tensor_;
  Norm norm_;
  std::unique_ptr<Linear> up_, down_;
};

}  // namespace

std::unique_ptr<Segment> mlp_segment(ParamStore& params, const GptConfig& c, int64_t layer,
                                     const ModelParts& parts) {
  return std::make_unique<MlpSegment>(params, c, layer, parts);
}

}  // namespace mtrain
