#include "model/gpt.h"

#include <algorithm>

namespace mtrain {

Gpt::Gpt(Stream& on, ParamStore& params, const GptConfig& c, int64_t positions,
         const Recompute& recompute, const ModelParts& parts)
    : c_(c) {
  if (c.rotary) rotary_ = rotary_tables(on, c, positions);
  embedding_ = std::make_unique<Embedding>(params, c, parts);
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.emplace_back(params, c, i, rotary_, recompute.attention_core, parts);
  head_ =
      std::make_unique<Head>(params, c, c.tied_embeddings ? embedding_->table() : nullptr, parts);
  embedding_unit_ = params.unit("embedding");
  head_unit_ = params.unit("output");
  for (int64_t i = 0; i < c.layers; ++i)
    block_units_.push_back(params.unit(fmt::format("layers.{}", i)));
  const auto layers = size_t(c.layers),
             recomputed = recompute.group ? std::min(layers, size_t(recompute.layers)) : 0;
  for (size_t i = 0; i < recomputed; i += size_t(recompute.group))
    groups_.push_back({i, std::min(recomputed, i + size_t(recompute.group)), true});
  if (recomputed < layers) groups_.push_back({recomputed, layers, false});
}

std::vector<ParamUnit*> Gpt::head_units() const {
  if (c_.tied_embeddings) return {head_unit_, embedding_unit_};
  return {head_unit_};
}

void Gpt::forward(Step& step, const MicroBatch& batch, const LossRequest& request) {
  const Hidden h = run_blocks(step, batch);
  // The head's gradients come together with the loss.
  for (ParamUnit* u : head_units())
    step.training ? step.units().before_backward(*u) : step.units().before_forward(*u);
  head_->loss(step, h, request);
  if (step.training) return;
  for (ParamUnit* u : head_units()) step.units().after_forward(*u);
}

void Gpt::backward(Step& step, const MicroBatch& batch) {
  UnitUse& use = step.units();
  Tensor d_TH = head_->backward(step);
  for (ParamUnit* u : head_units()) use.after_backward(*u);
  for (auto g = groups_.rbegin(); g != groups_.rend(); ++g)
    d_TH = backward_group(step, *g, std::move(d_TH));
  use.before_backward(*embedding_unit_);
  embedding_->backward(step, batch.input_T, d_TH);
  use.after_backward(*embedding_unit_);
  MT_CHECK(step.stash.empty(), "activations left after backward");
}

Tensor Gpt::logits(Step& step, const MicroBatch& batch) {
  const Hidden h = run_blocks(step, batch);
  for (ParamUnit* u : head_units()) step.units().before_forward(*u);
  const Tensor logits = head_->logits(step, h);
  for (ParamUnit* u : head_units()) step.units().after_forward(*u);
  return logits;
}

Hidden Gpt::run_blocks(Step& step, const MicroBatch& batch) {
  step.units().before_forward(*embedding_unit_);
  Hidden h{embedding_->forward(step, batch.input_T), {}};
  step.units().after_forward(*embedding_unit_);
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
