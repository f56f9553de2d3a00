#include "model/gpt.h"

#include <algorithm>

#include "base/math.h"

namespace mtrain {

Gpt::Gpt(Stream& on, ParamStore& params, const GptConfig& c, int64_t positions,
         const Recompute& recompute, const ModelParts& parts, const GptPart& part)
    : c_(c), part_(part), tensor_(parts.tensor) {
  part_.end = std::min(part_.end, c.layers);
  if (c.rotary) rotary_ = rotary_tables(on, c, positions);
  if (part_.embedding)
    embedding_ = std::make_unique<Embedding>(params, c, parts, part_.shares_table);
  for (int64_t i = part_.begin; i < part_.end; ++i) {
    blocks_.emplace_back(params, c, i, rotary_, recompute.attention_core, parts);
    block_units_.push_back(params.unit(fmt::format("layers.{}", i)));
  }
  if (part_.head) {
    head_ = std::make_unique<Head>(params, c, parts, part_.shares_table);
    head_unit_ = params.unit("output");
  }
  table_unit_ = params.unit("embedding");
  if (part_.embedding) embedding_units_ = embedding_->units();
  const size_t layers = blocks_.size(),
               recomputed = recompute.group ? std::min(layers, size_t(recompute.layers)) : 0;
  for (size_t i = 0; i < recomputed; i += size_t(recompute.group))
    groups_.push_back({i, std::min(recomputed, i + size_t(recompute.group)), true});
  if (recomputed < layers) groups_.push_back({recomputed, layers, false});
}

Shape Gpt::hidden_shape(const SequenceInfo& seq) const {
  return {tensor_->sequence() ? exact_div(seq.T(), int64_t(tensor_->size())) : seq.T(), c_.hidden};
}

// The head's gradients come together with the loss; but for its norm's, for which its unit stays.
void Gpt::before_head(Step& step) {
  UnitUse& use = step.units();
  step.training ? use.before_backward(*head_unit_) : use.before_forward(*head_unit_);
  if (borrows_table()) {
    use.before_forward(*table_unit_);
    if (step.training) use.before_grads(*table_unit_);
  }
  if (copies_table())
    step.training ? use.before_backward(*table_unit_) : use.before_forward(*table_unit_);
}

void Gpt::after_head(Step& step) {
  UnitUse& use = step.units();
  if (!step.training) use.after_forward(*head_unit_);
  if (borrows_table()) use.after_forward(*table_unit_);
  if (copies_table())
    step.training ? use.after_backward(*table_unit_) : use.after_forward(*table_unit_);
}

Tensor Gpt::forward(Step& step, const MicroBatch& batch, const LossRequest& request,
                    const Tensor& x_TH) {
  const Hidden h = run_blocks(step, batch, x_TH);
  if (!part_.head) return materialize(step, h);
  before_head(step);
  head_->loss(step, h, request);
  after_head(step);
  return {};
}

Tensor Gpt::backward(Step& step, const MicroBatch& batch, const Tensor& dy_TH) {
  UnitUse& use = step.units();
  Tensor d_TH = dy_TH;
  if (part_.head) {
    d_TH = head_->backward(step);
    use.after_backward(*head_unit_);
  }
  for (auto g = groups_.rbegin(); g != groups_.rend(); ++g)
    d_TH = backward_group(step, *g, std::move(d_TH));
  if (part_.embedding) {
    for (ParamUnit* u : embedding_units_) use.before_backward(*u);
    embedding_->backward(step, batch.input_T, d_TH);
    for (ParamUnit* u : embedding_units_) use.after_backward(*u);
    d_TH = {};
  }
  MT_CHECK(step.stash.empty(), "activations left after backward");
  return d_TH;
}

Tensor Gpt::logits(Step& step, const MicroBatch& batch) {
  const Hidden h = run_blocks(step, batch, {});
  before_head(step);
  const Tensor logits = head_->logits(step, h);
  after_head(step);
  return logits;
}

Hidden Gpt::run_blocks(Step& step, const MicroBatch& batch, const Tensor& x_TH) {
  Hidden h{x_TH, {}};
  if (part_.embedding) {
    for (ParamUnit* u : embedding_units_) step.units().before_forward(*u);
    h.x_TH = embedding_->forward(step, batch.input_T);
    for (ParamUnit* u : embedding_units_) step.units().after_forward(*u);
  }
  MT_CHECK(h.x_TH, "stage from layer {} on without its input", part_.begin);
  for (const Group& g : groups_) h = forward_group(step, g, std::move(h));
  return h;
}

Hidden Gpt::forward_group(Step& step, const Group& g, Hidden h) {
  const bool keep = step.training && !g.recompute;
  if (step.training && g.recompute) {
    h = {materialize(step, h), {}};
    step.stash.push(h.x_TH);
  }
  for (size_t i = g.begin; i < g.end; ++i) {
    // Recomputed, or forward only: activations go to a stash that dies with the layer.
    Stash discarded;
    Step inner = step.with(discarded);
    step.units().before_forward(*block_units_[i]);
    h = blocks_[i].forward(keep ? step : inner, std::move(h));
    step.units().after_forward(*block_units_[i]);
  }
  return h;
}

Tensor Gpt::backward_group(Step& step, const Group& g, Tensor d_TH) {
  Stash again;
  Step inner = step.with(again);
  UnitUse& use = step.units();
  if (g.recompute) {
    Hidden h{step.stash.pop<Tensor>(), {}};
    for (size_t i = g.begin; i < g.end; ++i) {
      const bool last = i + 1 == g.end;  // its backward comes next
      if (last)
        use.before_backward(*block_units_[i]);
      else
        use.before_recompute(*block_units_[i], block_units_[i + 1]);
      h = blocks_[i].forward(inner, std::move(h));
      if (!last) use.after_forward(*block_units_[i]);
    }
  }
  Step& from = g.recompute ? inner : step;
  for (size_t i = g.end; i-- > g.begin;) {
    if (!g.recompute || i + 1 < g.end) use.before_backward(*block_units_[i]);
    d_TH = blocks_[i].backward(from, std::move(d_TH));
    use.after_backward(*block_units_[i]);
  }
  return d_TH;
}

}  // namespace mtrain
