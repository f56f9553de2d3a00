#include "model/gpt.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "ops/operand.h"

namespace mtrain::model {

namespace {
// Returns the unit of a segment whose parameters are not in its layer's unit, else null.
ParamUnit* own_unit(Block& block, size_t segment) {
  ParamUnit* unit = block.segment(segment).unit();
  return unit == block.unit() ? nullptr : unit;
}

// What is kept of a group of layers that is computed again.
struct GroupInput {
  Tensor x_TH;
  std::shared_ptr<std::deque<std::any>> forward_results;  // Step::forward_results
};
}  // namespace

Gpt::Gpt(Stream& stream, ParamStore& params, const spec::ModelSpec& model, int64_t positions,
         const Recompute& recompute, const ModelImpls& impls, const StageSpec& stage)
    : spec_(model), stage_(stage), tensor_(impls.tensor), rotary_(stream, positions) {
  stage_.end = std::min(stage_.end, model.layer_count());
  if (stage_.embedding)
    embedding_ = std::make_unique<Embedding>(params, model, impls, stage_.shares_table);
  for (int64_t i = stage_.begin; i < stage_.end; ++i)
    blocks_.emplace_back(params, model, i, rotary_, recompute, impls);
  if (stage_.head) {
    head_ = std::make_unique<Head>(params, model, impls, stage_.shares_table);
    head_unit_ = head_->unit();
    table_unit_ = head_->output_unit();
  }
  if (stage_.embedding) embedding_units_ = embedding_->units();
  const size_t layers = blocks_.size(),
               recomputed = recompute.group ? std::min(layers, size_t(recompute.layers)) : 0;
  for (size_t i = 0; i < recomputed; i += size_t(recompute.group))
    groups_.push_back({i, std::min(recomputed, i + size_t(recompute.group)), true});
  if (recomputed < layers) groups_.push_back({recomputed, layers, false});
}

Shape Gpt::hidden_shape(const SequenceInfo& seq) const {
  return {tensor_->sequence() ? exact_div(seq.T(), int64_t(tensor_->size())) : seq.T(),
          spec_.hidden};
}

std::vector<ParamUnit*> Gpt::units() const {
  std::vector<ParamUnit*> all = embedding_units_;
  for (const Block& block : blocks_) {
    const auto units = block.units();
    all.insert(all.end(), units.begin(), units.end());
  }
  if (!stage_.head) return all;
  all.push_back(head_unit_);
  if (spec_.tied_embeddings && std::ranges::find(all, table_unit_) == all.end())
    all.push_back(table_unit_);
  return all;
}

// In training, the head computes its gradients together with the loss, except those of its norm. So
// its unit is needed until the norm's backward: backward_pass() calls after_backward() for it.
void Gpt::before_head(Step& step) {
  ParamHooks& hooks = step.param_hooks();
  step.training ? hooks.before_backward(*head_unit_) : hooks.before_forward(*head_unit_);
  if (borrows_table()) {
    hooks.before_forward(*table_unit_);
    if (step.training) hooks.before_grads(*table_unit_);
  }
  if (copies_table())
    step.training ? hooks.before_backward(*table_unit_) : hooks.before_forward(*table_unit_);
}

void Gpt::after_head(Step& step) {
  ParamHooks& hooks = step.param_hooks();
  if (!step.training) hooks.after_forward(*head_unit_);
  if (borrows_table()) hooks.after_forward(*table_unit_);
  if (copies_table())
    step.training ? hooks.after_backward(*table_unit_) : hooks.after_forward(*table_unit_);
}

Tensor Gpt::forward(Step& step, const MicroBatch& batch, const LossRequest& request,
                    const Tensor& x_TH) {
  StagePass pass = forward_pass(step, batch, request);
  pass.set_input(x_TH);
  return pass.finish();
}

Tensor Gpt::backward(Step& step, const MicroBatch& batch, const Tensor& dy_TH) {
  StagePass pass = backward_pass(step, batch);
  pass.set_input(dy_TH);
  return pass.finish();
}

Tensor Gpt::logits(Step& step, const MicroBatch& batch, const std::vector<int64_t>& rows) {
  StagePass pass = blocks_pass(step, batch);
  pass.finish();
  before_head(step);
  const Tensor logits = head_->logits(step, pass.flow_.h, rows);
  after_head(step);
  return logits;
}

StagePass Gpt::forward_pass(const Step& step, const MicroBatch& batch, const LossRequest& request) {
  StagePass pass = blocks_pass(step, batch);
  if (stage_.head)
    pass.add({SegmentKind::head}, [this, request](StagePass& p) {
      before_head(p.step_);
      head_->loss(p.step_, std::exchange(p.flow_, {}).h, request);
      after_head(p.step_);
    });
  else
    pass.add({SegmentKind::handoff},
             [](StagePass& p) { p.result_ = materialize(p.step_, std::exchange(p.flow_, {}).h); });
  return pass;
}

StagePass Gpt::blocks_pass(const Step& step, const MicroBatch& batch) {
  StagePass pass(step);
  pass.needs_input_ = !stage_.embedding;
  if (stage_.embedding)
    pass.add({SegmentKind::embedding}, [this, &batch](StagePass& p) {
      ParamHooks& hooks = p.step_.param_hooks();
      for (ParamUnit* u : embedding_units_) hooks.before_forward(*u);
      p.flow_.h.x_TH = embedding_->forward(p.step_, batch.input_T);
      for (ParamUnit* u : embedding_units_) hooks.after_forward(*u);
    });
  for (const Group& g : groups_)
    for (size_t i = g.begin; i < g.end; ++i)
      for (size_t s = 0; s < blocks_[i].size(); ++s)
        pass.add({blocks_[i].segment(s).kind(), int64_t(i)},
                 [this, &g, i, s](StagePass& p) { forward_segment(p, g, i, s); });
  return pass;
}

void Gpt::forward_segment(StagePass& p, const Group& g, size_t layer, size_t segment) {
  Step& step = p.step_;
  ParamHooks& hooks = step.param_hooks();
  Block& block = blocks_[layer];
  const bool keep = step.training && !g.recompute;
  if (segment == 0) {
    if (step.training && g.recompute && layer == g.begin) {
      p.flow_.h = {materialize(step, p.flow_.h), {}};
      p.forward_results_ = std::make_shared<std::deque<std::any>>();
      step.stash->push(GroupInput{p.flow_.h.x_TH, p.forward_results_});
    }
    hooks.before_forward(*block.unit());
  }
  ParamUnit* own = own_unit(block, segment);
  if (own) hooks.before_forward(*own);
  // If the layer is recomputed or there is no backward, its activations go to a stash that is
  // emptied at the layer's end.
  Step inner = step.with(p.not_kept_);
  if (step.training && g.recompute) inner.forward_results = p.forward_results_.get();
  p.flow_ = block.segment(segment).forward(keep ? step : inner, std::move(p.flow_));
  if (own) hooks.after_forward(*own);
  if (segment + 1 < block.size()) return;
  p.not_kept_ = {};
  hooks.after_forward(*block.unit());
}

StagePass Gpt::backward_pass(const Step& step, const MicroBatch& batch) {
  StagePass pass(step);
  pass.backward_ = true;
  pass.needs_input_ = !stage_.head;
  if (stage_.head)
    pass.add({SegmentKind::head}, [this](StagePass& p) {
      const auto to = blocks_.empty() ? ops::Destination{} : blocks_.back().gradient();
      p.flow_ = Flow::backward(head_->backward(p.step_, to));
      p.step_.param_hooks().after_backward(*head_unit_);
    });
  for (auto g = groups_.rbegin(); g != groups_.rend(); ++g) {
    if (g->recompute)
      for (size_t i = g->begin; i < g->end; ++i)
        pass.add({SegmentKind::recompute, int64_t(i)},
                 [this, &group = *g, i](StagePass& p) { recompute(p, group, i); });
    for (size_t i = g->end; i-- > g->begin;)
      for (size_t s = blocks_[i].size(); s-- > 0;)
        pass.add({blocks_[i].segment(s).kind(), int64_t(i)},
                 [this, &group = *g, i, s](StagePass& p) { backward_segment(p, group, i, s); });
  }
  if (stage_.embedding)
    pass.add({SegmentKind::embedding}, [this, &batch](StagePass& p) {
      ParamHooks& hooks = p.step_.param_hooks();
      for (ParamUnit* u : embedding_units_) hooks.before_backward(*u);
      embedding_->backward(p.step_, batch.input_T, std::exchange(p.flow_, {}).d_TH.plain);
      for (ParamUnit* u : embedding_units_) hooks.after_backward(*u);
    });
  return pass;
}

// The layer whose backward comes next is recomputed last, and its units stay for that backward.
void Gpt::recompute(StagePass& p, const Group& g, size_t layer) {
  ParamHooks& hooks = p.step_.param_hooks();
  Block& block = blocks_[layer];
  if (layer == g.begin) {
    auto input = p.step_.stash->pop<GroupInput>();
    p.recomputed_ = Flow::forward({std::move(input.x_TH), {}});
    p.forward_results_ = std::move(input.forward_results);
  }
  const bool last = layer + 1 == g.end;
  const auto before = [&](ParamUnit& unit, ParamUnit* next) {
    last ? hooks.before_backward(unit) : hooks.before_recompute(unit, next);
  };
  const auto after = [&](ParamUnit& unit) {
    if (!last) hooks.after_forward(unit);
  };
  ParamUnit* next = last ? nullptr : blocks_[layer + 1].unit();
  const auto units = block.units();
  before(*block.unit(), units.size() > 1 ? units[1] : next);
  Step inner = p.step_.with(p.not_kept_);
  inner.recomputing = true;
  inner.forward_results = p.forward_results_.get();
  for (size_t s = 0; s < block.size(); ++s) {
    ParamUnit* own = own_unit(block, s);
    if (own) before(*own, next);
    p.recomputed_ = block.segment(s).forward(inner, std::move(p.recomputed_));
    if (own) after(*own);
  }
  if (last) p.recomputed_ = {};
  after(*block.unit());
}

void Gpt::backward_segment(StagePass& p, const Group& g, size_t layer, size_t segment) {
  ParamHooks& hooks = p.step_.param_hooks();
  Block& block = blocks_[layer];
  const bool first = segment + 1 == block.size(), units_stay = g.recompute && layer + 1 == g.end;
  ParamUnit* own = own_unit(block, segment);
  if (first && !units_stay) hooks.before_backward(*block.unit());
  if (own && !units_stay) hooks.before_backward(*own);
  Step inner = p.step_.with(p.not_kept_);
  const auto to = segment > 0 ? block.segment(segment - 1).gradient()
                  : layer > 0 ? blocks_[layer - 1].gradient()
                              : ops::Destination{};
  p.flow_ = block.segment(segment).backward(g.recompute ? inner : p.step_, std::move(p.flow_), to);
  if (own) hooks.after_backward(*own);
  if (segment == 0) hooks.after_backward(*block.unit());
}

}  // namespace mtrain::model
