#include "model/latent_attention.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "model/linear.h"
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
  LinearOperand up_in;
};

struct LatentActivations {
  ops::NormResult norm;  // of the segment's input, without its output
  LinearOperand x;       // the input of the first linears; without a value that is computed again
  LinearOperand x_of_q;  // the same for the queries
  Latent q, kv;
  Tensor qkv_TN;    // the core's input; absent unless the core is recomputed
  CoreResult core;  // without its output, which is proj's input; absent if the core is recomputed
  LinearOperand proj_in;
  ops::NormResult out;  // the norm of the segment's output, without its result
};

spec::NormSpec latent_norm(const spec::ModelSpec& model, const spec::LatentProjections& latent) {
  return {.eps = latent.norm_eps, .plus_one = model.norm.plus_one};
}

// Returns the columns [first, first + count) of x.
Tensor columns(Stream& stream, const Tensor& x_TN, int64_t first, int64_t count) {
  const int64_t T = x_TN.dim(0);
  Tensor part = Tensor::empty(stream, {T, count}, x_TN.dtype());
  ops::copy_blocks(stream, x_TN, part,
                   {{.from_row = 0,
                     .from_column = first,
                     .to_row = 0,
                     .to_column = 0,
                     .rows = T,
                     .columns = count}});
  return part;
}
void set_columns(Stream& stream, const Tensor& part, const Tensor& x_TN, int64_t first) {
  ops::copy_blocks(stream, part, x_TN,
                   {{.from_row = 0,
                     .from_column = 0,
                     .to_row = 0,
                     .to_column = first,
                     .rows = part.dim(0),
                     .columns = part.dim(1)}});
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
               .Dv = a.value_dim()},
        dims_{heads_.A, a.head_dim - a.latent->rope_dim, a.latent->rope_dim, a.value_dim()} {
    const UnitId unit{UnitKind::layer, layer};
    const std::vector<spec::TensorSpec> tensors = spec::layer_tensors(model, layer);
    const auto spec_of = [&](const char* name, LayerGemm gemm) {
      return LinearSpec(unit, tensors, name_ + name, gemm, nullptr);
    };
    const spec::NormSpec norm = latent_norm(model, *a.latent);
    if (a.latent->q_rank > 0) {
      q_down_ = plain_linear(params, spec_of(".q_down", LayerGemm::qkv), tensor_->replicated());
      q_norm_.emplace(params, unit, tensors, name_ + ".q_latent_norm", norm, *tensor_);
    }
    q_up_ = tensor_->column_linear(params, spec_of(q_down_ ? ".q_up" : ".q", LayerGemm::qkv));
    kv_down_ = plain_linear(params, spec_of(".kv_down", LayerGemm::qkv), tensor_->replicated());
    kv_norm_.emplace(params, unit, tensors, name_ + ".kv_latent_norm", norm, *tensor_);
    kv_up_ = tensor_->column_linear(params, spec_of(".kv_up", LayerGemm::qkv));
    proj_ = tensor_->row_linear(params, spec_of(".proj", LayerGemm::proj));
    output_.emplace(params, unit, tensors, name_, model, tensor_, id_);
    core_ = impls.attention_core ? impls.attention_core(heads_, layer) : local_attention(heads_);
    unit_ = params.unit(unit);
  }

  SegmentKind kind() const override { return id_.kind; }
  ParamUnit* unit() const override { return unit_; }
  ops::Destination gradient() const override { return output_->gradient(*proj_); }

  Flow forward(Step& step, Flow in) override {
    const Device::Scope scope(step.compute.device(), name_);
    LatentActivations a;
    a.norm = norm_.forward(step, in.h, kv_down_->input(step.training));
    a.x = std::exchange(a.norm.y_TH, {});
    a.x_of_q = a.x;
    a.qkv_TN = expand(step, a);
    if (!keep_norm_) a.x.value = {}, a.x_of_q.value = {};
    a.core = core_->forward(step, a.qkv_TN, proj_->input(step.training));
    a.proj_in = std::exchange(a.core.out_TN, {});
    const Tensor out_TH = proj_->forward(step, a.proj_in);
    Hidden out{a.norm.sum_TH, output_->forward(step, out_TH, a.out)};
    if (recompute_core_)
      a.core = {}, a.proj_in.value = {};
    else
      a.qkv_TN = {};
    step.stash->push(std::move(a));
    return Flow::forward(std::move(out));
  }

  Flow backward(Step& step, Flow flow, const ops::Destination& to) override {
    const Device::Scope scope(step.compute.device(), name_);
    auto a = step.stash->pop<LatentActivations>();
    if (recompute_core_) {
      a.core = core_->forward(step, a.qkv_TN, {});
      a.proj_in.value = a.core.out_TN;
    }
    a.core.out_TN = a.proj_in.value;
    InputGradient dout = proj_->dgrad(step, output_->backward(step, flow.d_TH, a.out, proj_.get()));
    a.out = {};
    proj_->wgrad(step, std::move(a.proj_in), std::move(dout.dy));
    const Tensor dqkv = core_->backward(step, a.core, dout.dx_TI, {}, false).plain;
    a.core = {}, a.qkv_TN = {}, dout = {};
    if (!keep_norm_) {
      a.x.value = norm_.forward(step, {a.norm.sum_TH, {}}, a.x.rewrite).y_TH;
      a.x_of_q.value = a.x.value;
    }
    const Tensor dy = contract(step, a, dqkv);
    return Flow::backward(norm_.backward(step, a.norm, dy, flow.d_TH.plain, to));
  }

 private:
  // Returns the queries, keys and values of this rank's heads.
  Tensor expand(Step& step, LatentActivations& a) {
    Stream& stream = step.compute;
    const Tensor q_TN = q_down_ ? up(step, q_down_->forward(step, a.x_of_q), *q_norm_, *q_up_, a.q)
                                : q_up_->forward(step, a.x_of_q);
    rotate(step, q_TN, dims_.A, dims_.D(), false);
    const Tensor down_TN = kv_down_->forward(step, a.x);
    const Tensor shared_TR = tensor_->gather(step, columns(stream, down_TN, kv_rank_, dims_.R));
    rotate(step, shared_TR, 1, dims_.R, false);
    const Tensor kv_TN = up(step, columns(stream, down_TN, 0, kv_rank_), *kv_norm_, *kv_up_, a.kv);
    return ops::latent_heads(stream, dims_, q_TN, kv_TN, shared_TR);
  }

  // Returns the gradient of the first linears' input. The ranks' parts of the gradient of what all
  // heads share add up.
  Tensor contract(Step& step, LatentActivations& a, const Tensor& dqkv_TN) {
    Stream& stream = step.compute;
    ops::LatentGradients d = ops::latent_heads_backward(stream, dims_, dqkv_TN);
    rotate(step, d.dq_TN, dims_.A, dims_.D(), true);
    rotate(step, d.dshared_TR, 1, dims_.R, true);
    const Tensor dshared = tensor_->reduce(step, std::exchange(d.dshared_TR, {}));
    const Tensor dkv = up_backward(step, std::exchange(d.dkv_TN, {}), *kv_norm_, *kv_up_, a.kv);
    const Tensor ddown = Tensor::empty(stream, {dkv.dim(0), kv_rank_ + dims_.R}, dqkv_TN.dtype());
    set_columns(stream, dkv, ddown, 0);
    set_columns(stream, dshared, ddown, kv_rank_);
    const Tensor dx = kv_down_->backward(step, std::move(a.x), ddown);
    Tensor dq = std::exchange(d.dq_TN, {});
    Linear& first = q_down_ ? *q_down_ : *q_up_;
    if (q_down_) dq = up_backward(step, std::move(dq), *q_norm_, *q_up_, a.q);
    ops::add_into(stream, first.backward(step, std::move(a.x_of_q), std::move(dq)), dx);
    return dx;
  }

  // Normalizes a latent vector, and expands it.
  static Tensor up(Step& step, const Tensor& latent_TN, const Norm& norm, Linear& up,
                   Latent& kept) {
    kept.norm = norm.forward(step, {latent_TN, {}}, up.input(step.training));
    kept.up_in = std::exchange(kept.norm.y_TH, {});
    return up.forward(step, kept.up_in);
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
  const bool recompute_core_, keep_norm_;
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
