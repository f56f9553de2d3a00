#include "model/latent_attention.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "model/linear.h"
#include "model/lora_linear.h"
#include "model/norm.h"
#include "model/segment_norms.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "ops/latent_heads.h"
#include "ops/rope.h"

namespace mtrain::model {

namespace {

// A latent vector, as forward() keeps it for backward.
struct Latent {
  ops::NormResult norm;  // without its output, which is the linear's input
  LinearOperand up_in;   // without a value that is computed again
};

struct LatentActivations {
  ops::NormResult norm;  // of the segment's input, without its output
  LinearOperand x;       // the input of the first linears; without a value that is computed again
  LinearOperand x_of_q;  // the same for the queries
  Latent q, kv;
  Tensor qkv_TN;  // the core's input; absent unless the core is recomputed, and its input is not
  // The elements that the keys share, rotated, of all rows; absent unless the heads are recomputed.
  Tensor shared_TR;
  CoreResult core;  // without its output, which is proj's input; absent if the core is recomputed
  LinearOperand proj_in;
  ops::NormResult out;  // the norm of the segment's output, without its result
};

spec::NormSpec latent_norm(const spec::ModelSpec& model, const spec::LatentProjections& latent) {
  return {.eps = latent.norm_eps, .plus_one = model.norm.plus_one};
}

class LatentAttentionSegment : public Segment {
 public:
  LatentAttentionSegment(ParamStore& params, const spec::ModelSpec& model,
                         const spec::GroupedAttention& a, int64_t layer, const RotaryTables& rotary,
                         const Recompute& recompute, const ModelImpls& impls)
      : id_{SegmentKind::attention, layer},
        name_(segment_name(id_)),
        rotary_(rotary),
        recompute_core_(recompute.attention_core),
        recompute_heads_(recompute.latent_up),
        keep_norm_(!recompute.cheap && !recompute.norms),
        kv_rank_(a.latent->kv_rank),
        tensor_(impls.tensor),
        norm_(params, {UnitKind::layer, layer}, spec::layer_tensors(model, layer), name_,
              model.norm, *tensor_),
        heads_{.A = tensor_->local_count(a.heads),
               .G = tensor_->local_count(a.heads),
               .D = a.head_dim,
               .window = a.window,
               .score_scale = a.score_scale,
               .score_cap = float(a.score_cap),
               .Dv = a.value_head_dim},
        dims_{heads_.A, a.head_dim - a.latent->rope_dim, a.latent->rope_dim, a.value_dim()} {
    const UnitId unit{UnitKind::layer, layer};
    const std::vector<spec::TensorSpec> tensors = spec::layer_tensors(model, layer);
    const auto linear = [&](const char* name, LayerGemm gemm, LinearSide side) {
      return make_linear(params,
                         LinearSpec(unit, tensors, name_ + name, gemm, impls.quantizer_of(layer)),
                         side, model, tensor_);
    };
    const spec::NormSpec norm = latent_norm(model, *a.latent);
    if (a.latent->q_rank > 0) {
      q_down_ = linear(".q_down", LayerGemm::qkv, LinearSide::whole);
      q_norm_.emplace(params, unit, tensors, name_ + ".q_latent_norm", norm, *tensor_);
    }
    q_up_ = linear(q_down_ ? ".q_up" : ".q", LayerGemm::qkv, LinearSide::column);
    kv_down_ = linear(".kv_down", LayerGemm::qkv, LinearSide::whole);
    kv_norm_.emplace(params, unit, tensors, name_ + ".kv_latent_norm", norm, *tensor_);
    kv_up_ = linear(".kv_up", LayerGemm::qkv, LinearSide::column);
    proj_ = linear(".proj", LayerGemm::proj, LinearSide::row);
    output_.emplace(params, unit, tensors, name_, model, tensor_, id_);
    if (impls.latent_core) {
      MT_CHECK(!tensor_->sequence(), "{}: its latents are divided over ranks", name_);
      MT_CHECK(!model.lora, "{}: the keys and values of latents would lack their adapter", name_);
      latent_core_ = impls.latent_core({heads_, dims_, kv_rank_}, layer);
      kv_up_weight_ = params.find(name_ + ".kv_up.weight");
    } else {
      core_ = impls.attention_core ? impls.attention_core(heads_, layer) : local_attention(heads_);
    }
    unit_ = params.unit(unit);
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return unit_; }
  ops::Destination gradient() const override { return output_->gradient(*proj_); }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    LatentActivations a;
    a.norm = norm_.forward(step, in.h, input());
    a.x = std::exchange(a.norm.y_TH, {});
    a.x_of_q.value = a.x.value.plain;
    if (latent_core_) return attend_to_latents(step, a);
    a.qkv_TN = expand(step, a);
    if (!keep_norm_)
      for (LinearOperand* x : {&a.x, &a.x_of_q, &a.q.up_in, &a.kv.up_in}) x->value = {};
    a.core = core_->forward(step, a.qkv_TN, proj_->input(step.training));
    a.proj_in = std::exchange(a.core.out_TN, {});
    const Tensor out_TH = proj_->forward(step, a.proj_in);
    Hidden out{a.norm.sum_TH, output_->forward(step, out_TH, a.out)};
    if (recompute_core_) a.core = {}, a.proj_in.value = {};
    // A core under context parallelism may keep what it has exchanged, instead of its input.
    if (recompute_heads_ && !recompute_core_) core_->set_input(a.core, {});
    if (recompute_heads_ || !recompute_core_) a.qkv_TN = {};
    step.stash->push(std::move(a));
    return Flow::forward(std::move(out));
  }

  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash->pop<LatentActivations>();
    if (!keep_norm_ && recompute_heads_) normalize_again(step, a);
    if (recompute_heads_) {
      a.qkv_TN = expand_again(step, a);
      if (!recompute_core_) core_->set_input(a.core, a.qkv_TN);
    }
    if (recompute_core_) {
      a.core = core_->forward(step, a.qkv_TN, {});
      a.proj_in.value = a.core.out_TN;
    }
    a.core.out_TN = a.proj_in.value;
    InputGradient dout = proj_->dgrad(step, output_->backward(step, flow.d_TH, a.out, proj_.get()));
    a.out = {};
    proj_->wgrad(step, std::move(a.proj_in), std::move(dout.dy));
    Tensor dqkv = core_->backward(step, a.core, dout.dx_TI, {}, false).plain;
    a.core = {}, a.qkv_TN = {}, dout = {};
    if (!keep_norm_ && !recompute_heads_) normalize_again(step, a);
    const Tensor dy = contract(step, a, std::move(dqkv));
    return Flow::backward(norm_.backward(step, a.norm, dy, flow.d_TH.plain, to));
  }

 private:
  // Two linears with scales of their own read the norm's output. Its kernel therefore writes plain
  // numbers. It may find the maximum of one of them.
  ops::Destination input() const { return {.amax = kv_down_->input(false).amax}; }

  Flow attend_to_latents(Step& step, LatentActivations& a) {
    MT_CHECK(!step.training, "{}: attention to latents has no backward", name_);
    const Tensor q_TN = queries(step, a), down_TN = kv_down_->forward(step, a.x),
                 shared_TR = ops::copy_columns(step.compute, down_TN, kv_rank_, dims_.R);
    rotate(step, shared_TR, 1, dims_.R, false);
    const Tensor latent_TC =
        kv_norm_->forward(step, {ops::copy_columns(step.compute, down_TN, 0, kv_rank_), {}}, {})
            .y_TH.plain;
    LinearOperand proj_in(
        latent_core_->forward(step, {q_TN, latent_TC, shared_TR, kv_up_weight_->value}));
    const Tensor out_TH = proj_->forward(step, proj_in);
    return Flow::forward({a.norm.sum_TH, output_->forward(step, out_TH, a.out)});
  }

  // Returns the queries of this rank's heads, rotated.
  Tensor queries(Step& step, LatentActivations& a) {
    if (q_down_) normalize(step, q_down_->forward(step, a.x_of_q), *q_norm_, *q_up_, a.q);
    Tensor q_TN = q_up_->forward(step, q_down_ ? a.q.up_in : a.x_of_q);
    rotate(step, q_TN, dims_.A, dims_.D(), false);
    return q_TN;
  }

  // Returns the queries, keys and values of this rank's heads.
  Tensor expand(Step& step, LatentActivations& a) {
    Stream& stream = step.compute;
    const Tensor q_TN = queries(step, a);
    const Tensor down_TN = kv_down_->forward(step, a.x);
    const Tensor shared_TR =
        tensor_->gather(step, ops::copy_columns(stream, down_TN, kv_rank_, dims_.R));
    rotate(step, shared_TR, 1, dims_.R, false);
    normalize(step, ops::copy_columns(stream, down_TN, 0, kv_rank_), *kv_norm_, *kv_up_, a.kv);
    const Tensor kv_TN = kv_up_->forward(step, a.kv.up_in);
    if (recompute_heads_) a.shared_TR = shared_TR;
    return ops::latent_heads(stream, dims_, q_TN, kv_TN, shared_TR);
  }
  // The same from the latents that forward() keeps, and from x if the queries have none.
  Tensor expand_again(Step& step, LatentActivations& a) {
    const Tensor q_TN = q_up_->forward(step, q_down_ ? a.q.up_in : a.x_of_q);
    rotate(step, q_TN, dims_.A, dims_.D(), false);
    const Tensor kv_TN = kv_up_->forward(step, a.kv.up_in);
    return ops::latent_heads(step.compute, dims_, q_TN, kv_TN, std::exchange(a.shared_TR, {}));
  }
  // Computes the outputs of all norms that forward() has not kept.
  void normalize_again(Step& step, LatentActivations& a) {
    a.x.value = norm_.forward(step, {a.norm.sum_TH, {}}, a.x.rewrite).y_TH;
    a.x_of_q.value = a.x.value;
    if (q_down_) normalize_again(step, *q_norm_, a.q);
    normalize_again(step, *kv_norm_, a.kv);
  }
  static void normalize_again(Step& step, const Norm& norm, Latent& kept) {
    kept.up_in.value = norm.forward(step, {kept.norm.sum_TH, {}}, kept.up_in.rewrite).y_TH;
  }

  // Returns the gradient of the first linears' input. The ranks' parts of the gradient of what all
  // heads share add up.
  Tensor contract(Step& step, LatentActivations& a, Tensor dqkv_TN) {
    Stream& stream = step.compute;
    ops::LatentGradients d = ops::latent_heads_backward(stream, dims_, std::exchange(dqkv_TN, {}));
    rotate(step, d.dq_TN, dims_.A, dims_.D(), true);
    rotate(step, d.dshared_TR, 1, dims_.R, true);
    const Tensor dshared = tensor_->reduce(step, std::exchange(d.dshared_TR, {}));
    const Tensor dkv = up_backward(step, std::exchange(d.dkv_TN, {}), *kv_norm_, *kv_up_, a.kv);
    const Tensor ddown = Tensor::empty(stream, {dkv.dim(0), kv_rank_ + dims_.R}, dkv.dtype());
    ops::put_columns(stream, dkv, ddown, 0);
    ops::put_columns(stream, dshared, ddown, kv_rank_);
    const Tensor dx = kv_down_->backward(step, std::move(a.x), ddown);
    Tensor dq = std::exchange(d.dq_TN, {});
    Linear& first = q_down_ ? *q_down_ : *q_up_;
    if (q_down_) dq = up_backward(step, std::move(dq), *q_norm_, *q_up_, a.q);
    ops::add_into(stream, first.backward(step, std::move(a.x_of_q), std::move(dq)), dx);
    return dx;
  }

  // Normalizes a latent vector for the linear that expands it.
  static void normalize(Step& step, const Tensor& latent_TN, const Norm& norm, const Linear& up,
                        Latent& kept) {
    kept.norm = norm.forward(step, {latent_TN, {}}, up.input(step.training));
    kept.up_in = std::exchange(kept.norm.y_TH, {});
  }
  static Tensor up_backward(Step& step, Tensor d_TN, const Norm& norm, Linear& up, Latent& kept) {
    const Tensor dy = up.backward(step, std::move(kept.up_in), std::move(d_TN));
    return norm.backward(step, kept.norm, dy, {}, {}).plain;
  }

  void rotate(Step& step, const Tensor& x_TN, int64_t heads, int64_t D, bool backward) {
    ops::rope_interleaved(step.compute, x_TN, rotary_.cos_PR, rotary_.sin_PR, step.seq.position_T,
                          heads, D, backward);
  }

  const SegmentId id_;
  const std::string name_;
  const RotaryTables& rotary_;
  const bool recompute_core_, recompute_heads_, keep_norm_;
  const int64_t kv_rank_;
  const std::shared_ptr<TensorParallel> tensor_;
  InputNorm norm_;
  const HeadConfig heads_;  // the heads of this rank
  const ops::LatentDims dims_;
  std::optional<Norm> q_norm_, kv_norm_;
  std::optional<SegmentOutput> output_;
  std::unique_ptr<Linear> q_down_;  // null: q_up_ computes the queries from x
  std::unique_ptr<Linear> q_up_, kv_down_, kv_up_, proj_;
  std::unique_ptr<AttentionCore> core_;
  std::unique_ptr<LatentCore> latent_core_;  // not null: it replaces core_
  const Parameter* kv_up_weight_ = nullptr;  // with latent_core_
  ParamUnit* unit_ = nullptr;
};

}  // namespace

std::unique_ptr<Segment> latent_attention_segment(ParamStore& params, const spec::ModelSpec& model,
                                                  const spec::GroupedAttention& attention,
                                                  int64_t layer, const RotaryTables& rotary,
                                                  const Recompute& recompute,
                                                  const ModelImpls& impls) {
  return std::make_unique<LatentAttentionSegment>(params, model, attention, layer, rotary,
                                                  recompute, impls);
}

}  // namespace mtrain::model
