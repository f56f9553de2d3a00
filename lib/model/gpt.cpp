#include "model/gpt.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "ops/elementwise.h"
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
    blocks_.emplace_back(params, model, i, rotary_, recompute, impls, shared_);
  if (stage_.head || stage_.predicts()) declare_head(params, impls);
  if (stage_.embedding) embedding_units_ = embedding_->units();
  group_layers(recompute);
}

void Gpt::declare_head(ParamStore& params, const ModelImpls& impls) {
  head_ = std::make_unique<Head>(params, spec_, impls,
                                 Head::Parts{.norm = stage_.predicts(), .output = stage_.head},
                                 stage_.shares_table);
  head_unit_ = head_->unit();
  if (stage_.head) table_unit_ = head_->output_unit();
  if (spec_.mtp.depths == 0 || !stage_.predicts()) return;
  const bool copied = stage_.shares_table;
  Parameter* table = copied && !spec_.tied_embeddings ? add_table(params, spec_, impls, true)
                                                      : token_table(params);
  further_embedding_ = std::make_unique<Embedding>(table, spec_, impls);
  shared_ = {.embedding = further_embedding_.get(),
             .head = stage_.head ? head_.get() : nullptr,
             .tied = spec_.tied_embeddings,
             .copied = copied};
}

void Gpt::group_layers(const Recompute& recompute) {
  const size_t all = blocks_.size(),
               recomputed = recompute.group ? std::min(all, size_t(recompute.layers)) : 0,
               layers = all - (stage_.predicts() ? size_t(spec_.mtp.layers()) : 0),
               first = std::min(layers, recomputed);
  for (size_t i = 0; i < first; i += size_t(recompute.group))
    groups_.push_back({i, std::min(first, i + size_t(recompute.group)), true});
  if (first < layers) groups_.push_back({first, layers, false});
  if (!stage_.predicts()) return;
  for (int64_t depth = 1; depth <= spec_.mtp.depths; ++depth) {
    const size_t i = layers + (spec_.mtp.repeated ? 0 : size_t(depth - 1));
    depths_.push_back({i, i + 1, i < recomputed, depth});
  }
}

Shape Gpt::rows_shape(const SequenceInfo& seq, bool of_depths) const {
  const int64_t rows = tensor_->sequence() ? exact_div(seq.T(), int64_t(tensor_->size())) : seq.T();
  return {rows * (of_depths ? spec_.mtp.depths + 1 : 1), spec_.hidden};
}

Shape Gpt::input_shape(const SequenceInfo& seq, bool training) const {
  return rows_shape(seq, stage_.receives_depths && training);
}

Shape Gpt::result_shape(const SequenceInfo& seq, bool training) const {
  return rows_shape(seq, stage_.sends_depths && training);
}

std::vector<ParamUnit*> Gpt::units() const {
  std::vector<ParamUnit*> all = embedding_units_;
  for (const Block& block : blocks_) {
    const auto units = block.units();
    all.insert(all.end(), units.begin(), units.end());
  }
  if (!head_) return all;
  all.push_back(head_unit_);
  if (!spec_.table_at_end()) return all;
  ParamUnit* table = further_embedding_ ? further_embedding_->table()->unit : table_unit_;
  if (std::ranges::find(all, table) == all.end()) all.push_back(table);
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
  if (stage_.sends_depths) {
    add_sent_depths(pass, batch);
    return pass;
  }
  if (stage_.receives_depths) {
    add_received_depths(pass, batch, request);
    return pass;
  }
  if (!stage_.head) {
    pass.add({SegmentKind::handoff},
             [](StagePass& p) { p.result_ = materialize(p.step_, std::exchange(p.flow_, {}).h); });
    return pass;
  }
  pass.add({SegmentKind::head}, [this, request](StagePass& p) {
    before_head(p.step_);
    const Tensor y_TH = head_->loss(p.step_, std::exchange(p.flow_, {}).h, request);
    after_head(p.step_);
    p.flow_.h.x_TH = y_TH;
  });
  if (!predicts(step)) return pass;
  auto further = std::make_shared<Predictions>(Predictions{.input_T = batch.further_input_T});
  MT_CHECK(further->depths() == spec_.mtp.depths && request.depths.size() == depths_.size(),
           "a micro-batch for {} depths of {}", further->depths(), spec_.mtp.depths);
  for (size_t k = 0; k < depths_.size(); ++k)
    further->losses.push_back({.label_T = batch.further_label_T.at(k),
                               .total = request.depths[k].total,
                               .grad_scale = request.depths[k].grad_scale});
  pass.set_predictions(std::move(further));
  for (const Group& g : depths_) add_forward(pass, g);
  return pass;
}

void Gpt::add_sent_depths(StagePass& pass, const MicroBatch& batch) {
  pass.add({SegmentKind::handoff}, [this](StagePass& p) {
    ParamHooks& hooks = p.step_.param_hooks();
    hooks.before_forward(*head_unit_);
    const Tensor y_TH = head_->normalize(p.step_, std::exchange(p.flow_, {}).h);
    hooks.after_forward(*head_unit_);
    if (!predicts(p.step_)) {
      p.result_ = y_TH;
      return;
    }
    p.depth_rows_.push_back(y_TH);
    p.flow_.h.x_TH = y_TH;
  });
  if (!predicts(pass.step_)) return;
  pass.set_predictions(
      std::make_shared<Predictions>(Predictions{.input_T = batch.further_input_T}));
  for (const Group& g : depths_) add_forward(pass, g);
  pass.add({SegmentKind::handoff}, [](StagePass& p) {
    const std::vector<Tensor> rows = std::exchange(p.depth_rows_, {});
    const int64_t T = rows[0].dim(0);
    p.result_ =
        Tensor::empty(p.step_.compute, {int64_t(rows.size()) * T, rows[0].dim(1)}, rows[0].dtype());
    for (size_t k = 0; k < rows.size(); ++k)
      ops::cast(p.step_.compute, rows[k], p.result_.rows(int64_t(k) * T, int64_t(k + 1) * T));
  });
}

void Gpt::add_sent_depths_backward(StagePass& pass, const MicroBatch& batch) {
  pass.set_predictions(
      std::make_shared<Predictions>(Predictions{.input_T = batch.further_input_T}));
  pass.add({SegmentKind::handoff}, [this](StagePass& p) {
    const Tensor d = std::exchange(p.flow_, {}).d_TH.plain;
    const int64_t T = exact_div(d.dim(0), spec_.mtp.depths + 1);
    for (int64_t k = 0; k <= spec_.mtp.depths; ++k)
      p.depth_rows_.push_back(d.rows(k * T, (k + 1) * T));
  });
  for (auto g = depths_.rbegin(); g != depths_.rend(); ++g) add_backward(pass, *g);
  pass.add({SegmentKind::handoff}, [this](StagePass& p) {
    ParamHooks& hooks = p.step_.param_hooks();
    add_depth_gradient(p, 0);
    hooks.before_backward(*head_unit_);
    const Tensor d = std::exchange(p.flow_, {}).d_TH.plain;
    p.flow_ = Flow::backward(
        head_->backward(p.step_, destination_before(groups_.empty() ? 0 : groups_.back().end), d));
    hooks.after_backward(*head_unit_);
  });
}

// Adds what the next stage has sent for a depth to the gradient that comes from the next depth.
void Gpt::add_depth_gradient(StagePass& p, int64_t depth) {
  const Tensor d = std::exchange(p.depth_rows_.at(size_t(depth)), {});
  if (p.flow_.d_TH.plain) ops::add_into(p.step_.compute, p.flow_.d_TH.plain, d);
  p.flow_ = Flow::backward({d});
}

void Gpt::add_received_depths(StagePass& pass, const MicroBatch& batch,
                              const LossRequest& request) {
  std::vector<LossRequest> depths{request};
  for (size_t k = 0; pass.step_.training && k < request.depths.size(); ++k)
    depths.push_back({.label_T = batch.further_label_T.at(k),
                      .total = request.depths[k].total,
                      .grad_scale = request.depths[k].grad_scale});
  pass.add({SegmentKind::head}, [this, depths](StagePass& p) {
    before_head(p.step_);
    head_->losses_of_rows(p.step_, std::exchange(p.flow_, {}).h.x_TH, depths);
    after_head(p.step_);
  });
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
  for (const Group& g : groups_) add_forward(pass, g);
  return pass;
}

void Gpt::add_forward(StagePass& pass, const Group& g) {
  for (size_t i = g.begin; i < g.end; ++i)
    for (size_t s = 0; s < blocks_[i].size(); ++s)
      pass.add({blocks_[i].segment(s).kind(), int64_t(i)},
               [this, &g, i, s](StagePass& p) { forward_segment(p, g, i, s); });
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
  // emptied after each segment: the last one of a further layer computes logits.
  Step inner = step.with(p.not_kept_);
  if (step.training && g.recompute) inner.forward_results = p.forward_results_.get();
  Step kept = step;
  inner.depth = kept.depth = g.depth;
  p.flow_ = block.segment(segment).forward(keep ? kept : inner, std::move(p.flow_));
  if (own) hooks.after_forward(*own);
  p.not_kept_ = {};
  if (segment + 1 < block.size()) return;
  if (g.depth > 0 && stage_.sends_depths) p.depth_rows_.push_back(p.flow_.h.x_TH);
  if (g.depth > 0 && g.depth == spec_.mtp.depths) p.flow_ = {};
  hooks.after_forward(*block.unit());
}

StagePass Gpt::backward_pass(const Step& step, const MicroBatch& batch) {
  StagePass pass(step);
  pass.backward_ = true;
  pass.needs_input_ = !stage_.head;
  if (stage_.sends_depths) {
    add_sent_depths_backward(pass, batch);
  } else if (predicts(step)) {
    pass.set_predictions(
        std::make_shared<Predictions>(Predictions{.input_T = batch.further_input_T}));
    for (auto g = depths_.rbegin(); g != depths_.rend(); ++g) add_backward(pass, *g);
  }
  if (stage_.receives_depths)
    pass.add({SegmentKind::head}, [this](StagePass& p) {
      p.flow_ = Flow::backward({head_->rows_backward(p.step_)});
      p.step_.param_hooks().after_backward(*head_unit_);
    });
  else if (stage_.head)
    pass.add({SegmentKind::head}, [this](StagePass& p) {
      const auto to = destination_before(groups_.empty() ? 0 : groups_.back().end);
      p.flow_ = Flow::backward(head_->backward(p.step_, to, std::exchange(p.flow_, {}).d_TH.plain));
      p.step_.param_hooks().after_backward(*head_unit_);
    });
  for (auto g = groups_.rbegin(); g != groups_.rend(); ++g) add_backward(pass, *g);
  if (stage_.embedding)
    pass.add({SegmentKind::embedding}, [this, &batch](StagePass& p) {
      ParamHooks& hooks = p.step_.param_hooks();
      for (ParamUnit* u : embedding_units_) hooks.before_backward(*u);
      embedding_->backward(p.step_, batch.input_T, std::exchange(p.flow_, {}).d_TH.plain);
      for (ParamUnit* u : embedding_units_) hooks.after_backward(*u);
    });
  return pass;
}

void Gpt::add_backward(StagePass& pass, const Group& g) {
  if (g.recompute)
    for (size_t i = g.begin; i < g.end; ++i)
      pass.add({SegmentKind::recompute, int64_t(i)},
               [this, &g, i](StagePass& p) { recompute(p, g, i); });
  for (size_t i = g.end; i-- > g.begin;)
    for (size_t s = blocks_[i].size(); s-- > 0;)
      pass.add({blocks_[i].segment(s).kind(), int64_t(i)},
               [this, &g, i, s](StagePass& p) { backward_segment(p, g, i, s); });
}

// Returns the destination of the gradient of a layer's input.
ops::Destination Gpt::destination_before(size_t layer) {
  return layer > 0 ? blocks_[layer - 1].gradient() : ops::Destination{};
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
    last ? before_backward(hooks, unit, g) : hooks.before_recompute(unit, next);
  };
  const auto after = [&](ParamUnit& unit) {
    if (!last) hooks.after_forward(unit);
  };
  ParamUnit* next = last ? nullptr : blocks_[layer + 1].unit();
  const auto units = block.units();
  before(*block.unit(), units.size() > 1 ? units[1] : next);
  Step inner = p.step_.with(p.not_kept_);
  inner.recomputing = true;
  inner.depth = g.depth;
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
  if (first && !units_stay) before_backward(hooks, *block.unit(), g);
  if (own && !units_stay) before_backward(hooks, *own, g);
  Step inner = g.recompute ? p.step_.with(p.not_kept_) : p.step_;
  inner.depth = g.depth;
  const auto to = segment > 0   ? block.segment(segment - 1).gradient()
                  : g.depth > 0 ? ops::Destination{}
                                : destination_before(layer);
  if (first && g.depth > 0 && stage_.sends_depths) add_depth_gradient(p, g.depth);
  inner.wgrad.report(completes(g));
  p.flow_ = block.segment(segment).backward(inner, std::move(p.flow_), to);
  inner.wgrad.report(true);
  if (own) after_backward(hooks, *own, g);
  if (segment == 0) after_backward(hooks, *block.unit(), g);
}

void Gpt::before_backward(ParamHooks& hooks, ParamUnit& unit, const Group& g) const {
  if (completes(g)) return hooks.before_backward(unit);
  hooks.before_forward(unit);
  hooks.before_grads(unit);
}

void Gpt::after_backward(ParamHooks& hooks, ParamUnit& unit, const Group& g) const {
  completes(g) ? hooks.after_backward(unit) : hooks.after_forward(unit);
}

}  // namespace mtrain::model
