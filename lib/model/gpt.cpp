#include "model/gpt.h"

#include <algorithm>

namespace mtrain {

Gpt::Gpt(Stream& on, ParamStore& params, const GptConfig& c, int64_t positions,
         const Recompute& recompute)
    : c_(c) {
  if (c.rotary) rotary_ = rotary_tables(on, c, positions);
  embedding_ = std::make_unique<Embedding>(params, c);
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.emplace_back(params, c, i, rotary_, recompute.attention_core);
  head_ = std::make_unique<Head>(params, c, c.tied_embeddings ? embedding_->table() : nullptr);
  const auto layers = size_t(c.layers),
             recomputed = recompute.group ? std::min(layers, size_t(recompute.layers)) : 0;
  for (size_t i = 0; i < recomputed; i += size_t(recompute.group))
    groups_.push_back({i, std::min(recomputed, i + size_t(recompute.group)), true});
  if (recomputed < layers) groups_.push_back({recomputed, layers, false});
}

void Gpt::forward(Step& step, const MicroBatch& batch, const LossRequest& request) {
  head_->loss(step, run_blocks(step, batch), request);
}

void Gpt::backward(Step& step, const MicroBatch& batch) {
  Tensor d_TH = head_->backward(step);
  for (auto g = groups_.rbegin(); g != groups_.rend(); ++g)
    d_TH = backward_group(step, *g, std::move(d_TH));
  embedding_->backward(step, batch.input_T, d_TH);
  MT_CHECK(step.stash.empty(), "activations left after backward");
}

Tensor Gpt::logits(Step& step, const MicroBatch& batch) {
  return head_->logits(step, run_blocks(step, batch));
}

Hidden Gpt::run_blocks(Step& step, const MicroBatch& batch) {
  Hidden h{embedding_->forward(step, batch.input_T), {}};
  for (const Group& g : groups_) h = forward_group(step, g, std::move(h));
  return h;
}

Hidden Gpt::forward_group(Step& step, const Group& g, Hidden h) {
  if (!g.recompute && step.training) {
    for (size_t i = g.begin; i < g.end; ++i) h = blocks_[i].forward(step, std::move(h));
    return h;
  }
  // Recomputed, or forward only: activations go to a stash that dies with each layer.
  if (step.training) {
    h = {materialize(step, h), {}};
    step.stash.push(h.x_TH);
  }
  for (size_t i = g.begin; i < g.end; ++i) {
    Stash discarded;
    Step inner = step.with(discarded);
    h = blocks_[i].forward(inner, std::move(h));
  }
  return h;
}

Tensor Gpt::backward_group(Step& step, const Group& g, Tensor d_TH) {
  Stash again;
  Step inner = step.with(again);
  if (g.recompute) {
    Hidden h{step.stash.pop<Tensor>(), {}};
    for (size_t i = g.begin; i < g.end; ++i) h = blocks_[i].forward(inner, std::move(h));
  }
  Step& from = g.recompute ? inner : step;
  for (size_t i = g.end; i-- > g.begin;) d_TH = blocks_[i].backward(from, std::move(d_TH));
  return d_TH;
}

}  // namespace mtrain
