#include "model/attention.h"

#include <optional>

#include "device/device.h"
#include "model/head_norms.h"
#include "model/lora_linear.h"
#include "model/segment_norms.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace mtrain::model {

namespace {

struct AttentionActivations {
  ops::NormResult norm;  // without its output, which is qkv's input
  Tensor raw_TN;         // the qkv before the norms of q and k; absent without these norms
  HeadNorms::Statistics head_norms;  // of these norms; absent if the norms are recomputed
  // The core's input. It is absent unless the core is recomputed, since the core keeps what it
  // needs; and absent if the norms of q and k are recomputed, too.
  Tensor qkv_TN;
  CoreResult core;  // without its output, which is proj's input; absent if the core is recomputed
  LinearOperand qkv_in, proj_in;  // without values that are computed again
  ops::NormResult out;            // the norm of the segment's output, without its result
};

class AttentionSegment : public Segment {
 public:
  AttentionSegment(ParamStore& params, const spec::ModelSpec& model,
                   const spec::GroupedAttention& a, int64_t layer, const RotaryTables* rotary,
                   const Recompute& recompute, const ModelImpls& impls)
      : id_{SegmentKind::attention, layer},
        name_(segment_name(id_)),
        rotary_(rotary),
        recompute_core_(recompute.attention_core),
        recompute_head_norms_(recompute_core_ && recompute.norms &&
                              a.head_norm != spec::HeadNorm::none),
        keep_norm_(!recompute.cheap && !recompute.norms),
        tensor_(impls.tensor),
        norm_(params, unit_id(layer), spec::layer_tensors(model, layer), name_, model.norm,
              *tensor_),
        heads_{.A = tensor_->local_count(a.heads),
               .G = tensor_->local_count(a.kv_heads),
               .D = a.head_dim,
               .window = a.window,
               .score_scale = a.score_scale,
               .score_cap = float(a.score_cap)} {
    core_ = impls.attention_core ? impls.attention_core(heads_, layer) : local_attention(heads_);
    const UnitId unit = unit_id(layer);
    const std::vector<spec::TensorSpec> tensors = spec::layer_tensors(model, layer);
    const std::shared_ptr<Quantizer> quantizer = impls.quantizer_of(layer);
    qkv_ = make_linear(params, {unit, tensors, name_ + ".qkv", LayerGemm::qkv, quantizer},
                       LinearSide::column, model, tensor_);
    proj_ = make_linear(params, {unit, tensors, name_ + ".proj", LayerGemm::proj, quantizer},
                        LinearSide::row, model, tensor_);
    if (a.head_norm != spec::HeadNorm::none)
      head_norms_.emplace(params, unit, tensors, name_, model.norm, a.head_norm, tensor_, heads_);
    output_.emplace(params, unit, tensors, name_, model, tensor_, id_);
    unit_ = params.unit(unit);
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return unit_; }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    AttentionActivations a;
    a.norm = norm_.forward(step, in.h, qkv_->input(step.training));
    a.qkv_in = std::exchange(a.norm.y_TH, {});
    a.qkv_TN = qkv_->forward(step, a.qkv_in);
    if (!keep_norm_) a.qkv_in.value = {};
    if (head_norms_) {
      a.raw_TN = a.qkv_TN;
      a.qkv_TN = head_norms_->forward(step, a.raw_TN, a.head_norms);
    }
    if (rotary_) rotate(step, a.qkv_TN, false);
    a.core = core_->forward(step, a.qkv_TN, proj_->input(step.training));
    a.proj_in = std::exchange(a.core.out_TN, {});
    const Tensor out_TH = proj_->forward(step, a.proj_in);
    Hidden out{a.norm.sum_TH, output_->forward(step, out_TH, a.out)};
    if (recompute_core_) a.core = {}, a.proj_in.value = {};
    if (!recompute_core_ || recompute_head_norms_) a.qkv_TN = {};
    if (recompute_head_norms_) a.head_norms = {};
    step.stash->push(std::move(a));
    return Flow::forward(std::move(out));
  }

  ops::Destination gradient() const override { return output_->gradient(*proj_); }

  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash->pop<AttentionActivations>();
    if (recompute_head_norms_) {
      a.qkv_TN = head_norms_->forward(step, a.raw_TN, a.head_norms);
      if (rotary_) rotate(step, a.qkv_TN, false);
    }
    if (recompute_core_) {
      a.core = core_->forward(step, a.qkv_TN, {});
      a.proj_in.value = a.core.out_TN;
    }
    a.core.out_TN = a.proj_in.value;
    InputGradient dout = proj_->dgrad(step, output_->backward(step, flow.d_TH, a.out, proj_.get()));
    a.out = {};
    // The gradient for wgrad is moved, so that its memory is free for what follows: under sequence
    // parallelism it has the rows of all ranks.
    proj_->wgrad(step, std::move(a.proj_in), std::move(dout.dy));
    ops::Written dqkv =
        core_->backward(step, a.core, dout.dx_TI, qkv_->gradient(), !rotary_ && !head_norms_);
    a.core = {}, a.qkv_TN = {}, dout = {};
    if (rotary_) rotate(step, dqkv, true, !head_norms_);
    if (head_norms_) head_norms_->backward(step, a.raw_TN, a.head_norms, dqkv);
    if (!keep_norm_)
      a.qkv_in.value = norm_.forward(step, {a.norm.sum_TH, {}}, a.qkv_in.rewrite).y_TH;
    const Tensor dy = qkv_->backward(step, std::move(a.qkv_in), std::move(dqkv));
    return Flow::backward(norm_.backward(step, a.norm, dy, flow.d_TH.plain, to));
  }

 private:
  static UnitId unit_id(int64_t layer) { return {UnitKind::layer, layer}; }

  // `last`: no kernel changes q and k later.
  void rotate(Step& step, const ops::Written& qk_TN, bool backward, bool last = true) {
    ops::rope(step.compute, qk_TN, rotary_->cos_PR, rotary_->sin_PR, step.seq.position_T,
              heads_.A + heads_.G, heads_.D, backward, last);
  }

  const SegmentId id_;
  const std::string name_;  // names the scope in error messages, and starts the parameters' names
  const RotaryTables* const rotary_;  // null: the layer does not rotate
  bool recompute_core_, recompute_head_norms_, keep_norm_;
  std::shared_ptr<TensorParallel> tensor_;
  InputNorm norm_;
  HeadConfig heads_;  // the heads of this rank
  std::optional<HeadNorms> head_norms_;
  std::optional<SegmentOutput> output_;
  std::unique_ptr<Linear> qkv_, proj_;
  std::unique_ptr<AttentionCore> core_;
  ParamUnit* unit_ = nullptr;
};

}  // namespace

std::unique_ptr<Segment> attention_segment(ParamStore& params, const spec::ModelSpec& model,
                                           const spec::GroupedAttention& attention, int64_t layer,
                                           const RotaryTables* rotary, const Recompute& recompute,
                                           const ModelImpls& impls) {
  return std::make_unique<AttentionSegment>(params, model, attention, layer, rotary, recompute,
                                            impls);
}

}  // namespace mtrain::model
