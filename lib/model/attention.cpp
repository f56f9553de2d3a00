#include "model/attention.h"

#include <cmath>

#include "device/device.h"

namespace mtrain::model {

namespace {

struct AttentionActivations {
  ops::NormResult norm;   // its output is absent if it is computed again
  Tensor raw_TN;          // the qkv before the norms of q and k; absent without qk_norm
  Tensor rstd_q, rstd_k;  // statistics of these norms; absent if the norms are recomputed
  // The core's input. It is absent unless the core is recomputed, since the core keeps what it
  // needs; and absent if the norms of q and k are recomputed, too.
  Tensor qkv_TN;
  CoreResult core;  // absent if the core is recomputed
  InputScale qkv_scale, proj_scale;
};

class AttentionSegment : public Segment {
 public:
  AttentionSegment(ParamStore& params, const GptConfig& c, int64_t layer,
                   const RotaryTables& rotary, const Recompute& recompute, const ModelImpls& impls)
      : c_(c),
        id_{SegmentKind::attention, layer},
        name_(segment_name(id_)),
        rotary_(rotary),
        rotates_(c.rotates(layer)),
        recompute_core_(recompute.attention_core),
        recompute_head_norms_(recompute_core_ && recompute.norms && c.qk_norm),
        keep_norm_(!recompute.cheap && !recompute.norms),
        tensor_(impls.tensor),
        norm_(params, unit_id(layer), name_ + ".norm", c, *tensor_),
        heads_{.A = tensor_->local_count(c.heads),
               .G = tensor_->local_count(c.kv_heads),
               .D = c.head_dim,
               .window = c.window_of(layer),
               .score_scale = c.score_scale,
               .score_cap = c.score_cap} {
    core_ = impls.attention_core ? impls.attention_core(heads_, layer) : local_attention(heads_);
    const int64_t D = c.head_dim;
    qkv_ = tensor_->column_linear(params,
                                  {.unit = unit_id(layer),
                                   .name = name_ + ".qkv",
                                   .I = c.hidden,
                                   .O = c.qkv_width(),
                                   .bias = c.qkv_bias,
                                   .std = c.init_std,
                                   .gemm = LayerGemm::qkv,
                                   .sections = {{c.heads, D}, {c.kv_heads, D}, {c.kv_heads, D}},
                                   .fp8 = impls.fp8_of(layer)});
    // The initial weights of projections into the residual stream are smaller by sqrt(2 L) (GPT-2).
    proj_ = tensor_->row_linear(params, {.unit = unit_id(layer),
                                         .name = name_ + ".proj",
                                         .I = c.heads * D,
                                         .O = c.hidden,
                                         .bias = c.proj_bias,
                                         .std = c.init_std / std::sqrt(2.0f * float(c.layers)),
                                         .gemm = LayerGemm::proj,
                                         .fp8 = impls.fp8_of(layer)});
    if (c.qk_norm) {
      // Each rank normalizes its own heads, so the gradients of these weights are sums over ranks.
      ShardSpec shard = tensor_->replicated();
      shard.partial_grad = true;
      const auto add = [&](const char* which) {
        return params.add(unit_id(layer), {.name = name_ + which,
                                           .shape = {c.head_dim},
                                           .init = Init::ones,
                                           .decay = false,
                                           .matmul_grad = false,
                                           .shard = shard});
      };
      q_norm_ = add(".q_norm.weight");
      k_norm_ = add(".k_norm.weight");
    }
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return norm_.unit(); }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    AttentionActivations a;
    const ops::Float8Write write = qkv_->input_write(step.training);
    a.qkv_scale = InputScale(write);
    a.norm = norm_.forward(step, in.h, write);
    a.qkv_TN = qkv_->forward(step, a.norm.y_TH, a.qkv_scale);
    if (!keep_norm_) a.norm.y_TH = {};
    if (c_.qk_norm) {
      a.raw_TN = a.qkv_TN;
      normalize_heads(step, a);
    }
    if (rotates_) rotate(step, a.qkv_TN, false);
    const ops::Float8Write out_write = core_write(step, proj_->input_write(step.training));
    a.proj_scale = InputScale(out_write);
    CoreResult core = core_->forward(step, a.qkv_TN, out_write);
    const Tensor quantized = std::exchange(core.quantized_out_TN, {});
    Hidden out{a.norm.sum_TH,
               proj_->forward(step, quantized ? quantized : core.out_TN, a.proj_scale)};
    drop(step, out.delta_TH, id_, c_.hidden_dropout, tensor_->first_row(step.seq.T()));
    if (!recompute_core_) a.core = std::move(core);
    if (!recompute_core_ || recompute_head_norms_) a.qkv_TN = {};
    if (recompute_head_norms_) a.rstd_q = {}, a.rstd_k = {};
    step.stash.push(std::move(a));
    return Flow::forward(std::move(out));
  }

  ops::Float8Write gradient_write() const override {
    return c_.hidden_dropout > 0 ? ops::Float8Write{} : proj_->gradient_write();
  }

  Flow backward(Step& step, Flow flow, const ops::Float8Write& write) override {
    const HiddenGradient& d = flow.d;
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash.pop<AttentionActivations>();
    if (recompute_head_norms_) {
      normalize_heads(step, a);
      if (rotates_) rotate(step, a.qkv_TN, false);
    }
    if (recompute_core_) a.core = core_->forward(step, a.qkv_TN, {});
    InputGradient dout = proj_->dgrad(step, {drop_backward(step, d.d_TH, id_, c_.hidden_dropout,
                                                           tensor_->first_row(step.seq.T())),
                                             d.write, d.quantized_TH});
    // The gradient for wgrad is moved, so that its memory is free for what follows: under sequence
    // parallelism it has the rows of all ranks.
    proj_->wgrad(step, a.core.out_TN, a.proj_scale, std::move(dout.for_wgrad));
    // The last kernel that writes the gradients of q and k finds their maximum.
    const ops::Float8Write dqkv_write = core_write(step, qkv_->gradient_write());
    const Tensor dqkv_amax = dqkv_write.amax, none;
    Tensor dqkv =
        core_->backward(step, a.core, dout.dx_TI,
                        {.dqk = rotates_ || c_.qk_norm ? none : dqkv_amax, .dv = dqkv_amax});
    a.core = {}, a.qkv_TN = {}, dout = {};
    if (rotates_) rotate(step, dqkv, true, c_.qk_norm ? none : dqkv_amax);
    if (c_.qk_norm) normalize_heads_backward(step, a, dqkv, dqkv_amax);
    const Tensor y =
        keep_norm_ ? a.norm.y_TH : norm_.forward(step, {a.norm.sum_TH, {}}, a.qkv_scale.again).y_TH;
    const Tensor dy = qkv_->backward(step, y, a.qkv_scale, {std::move(dqkv), dqkv_write});
    return Flow::backward(norm_.backward(step, a.norm, dy, d.d_TH, write), write);
  }

 private:
  static UnitId unit_id(int64_t layer) { return {UnitKind::layer, layer}; }

  // Returns what the core's kernels do of a linear's wish.
  ops::Float8Write core_write(const Step& step, const ops::Float8Write& wish) const {
    return core_->writes_float8(step) ? wish : ops::Float8Write{};
  }

  void rotate(Step& step, const Tensor& qk_TN, bool backward, const Tensor& amax = {}) {
    ops::rope(step.compute, qk_TN, rotary_.cos_PR, rotary_.sin_PR, step.seq.position_T,
              heads_.A + heads_.G, heads_.D, backward, amax);
  }

  ops::HeadRange q_heads() const { return {0, heads_.A, heads_.D}; }
  ops::HeadRange k_heads() const { return {heads_.A, heads_.G, heads_.D}; }
  ops::NormWeights head_weights(const Parameter* p) const {
    return {ops::NormKind::rms, p->value, {}, c_.norm_eps};
  }

  // Sets qkv_TN, rstd_q and rstd_k from raw_TN.
  void normalize_heads(Step& step, AttentionActivations& a) {
    a.qkv_TN = Tensor::empty(step.compute, a.raw_TN.shape(), a.raw_TN.dtype());
    ops::cast(step.compute, a.raw_TN, a.qkv_TN);  // copies v; the norms overwrite q and k
    a.rstd_q = ops::head_norm(step.compute, head_weights(q_norm_), a.raw_TN, a.qkv_TN, q_heads());
    a.rstd_k = ops::head_norm(step.compute, head_weights(k_norm_), a.raw_TN, a.qkv_TN, k_heads());
  }

  void normalize_heads_backward(Step& step, const AttentionActivations& a, const Tensor& dqkv_TN,
                                const Tensor& amax) {
    ops::head_norm_backward(step.compute, head_weights(q_norm_), a.raw_TN, a.rstd_q, dqkv_TN,
                            q_heads(), q_norm_->grad, amax);
    ops::head_norm_backward(step.compute, head_weights(k_norm_), a.raw_TN, a.rstd_k, dqkv_TN,
                            k_heads(), k_norm_->grad, amax);
    step.wgrad.ready(*q_norm_);
    step.wgrad.ready(*k_norm_);
  }

  GptConfig c_;
  const SegmentId id_;
  const std::string name_;  // names the scope in error messages, and starts the parameters' names
  const RotaryTables& rotary_;
  const bool rotates_;
  bool recompute_core_, recompute_head_norms_, keep_norm_;
  std::shared_ptr<TensorParallel> tensor_;
  Norm norm_;
  HeadConfig heads_;  // the heads of this rank
  std::unique_ptr<Linear> qkv_, proj_;
  std::unique_ptr<AttentionCore> core_;
  Parameter *q_norm_ = nullptr, *k_norm_ = nullptr;
};

}  // namespace

std::unique_ptr<Segment> attention_segment(ParamStore& params, const GptConfig& c, int64_t layer,
                                           const RotaryTables& rotary, const Recompute& recompute,
                                           const ModelImpls& impls) {
  return std::make_unique<AttentionSegment>(params, c, layer, rotary, recompute, impls);
}

}  // namespace mtrain::model
