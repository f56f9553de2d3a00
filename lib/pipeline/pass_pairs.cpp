#include "pipeline/pass_pairs.h"

#include <algorithm>
#include <set>

namespace mtrain::pipeline {

namespace {

using model::SegmentKind;
using model::StagePass;
using schedule::PairPart;
using schedule::PassPart;

PassPart kind_of(SegmentKind kind, bool experts) {
  switch (kind) {
    case SegmentKind::attention: return PassPart::attention;
    case SegmentKind::mlp: return experts ? PassPart::experts : PassPart::mlp;
    case SegmentKind::route: return PassPart::route;
    case SegmentKind::dispatch: return PassPart::dispatch;
    case SegmentKind::combine: return PassPart::combine;
    case SegmentKind::merge: return PassPart::merge;
    case SegmentKind::prediction_output:
    case SegmentKind::head: return PassPart::head;
    case SegmentKind::embedding:
    case SegmentKind::prediction_input:
    case SegmentKind::recompute:
    case SegmentKind::handoff: return PassPart::other;
  }
  throw BugError("a part of a pass");
}

bool has(const StagePass& pass, SegmentKind kind) {
  for (size_t i = 0; i < pass.size(); ++i)
    if (pass.part(i).kind == kind) return true;
  return false;
}

std::vector<PairPart> parts_of(const StagePass& pass, const schedule::PassCosts& costs,
                               bool forward) {
  std::set<int64_t> with_experts;
  for (size_t i = 0; i < pass.size(); ++i)
    if (pass.part(i).kind == SegmentKind::route) with_experts.insert(pass.part(i).layer);
  std::vector<PairPart> parts;
  for (size_t i = 0; i < pass.size(); ++i) {
    const StagePass::Part& part = pass.part(i);
    const PassPart kind = kind_of(part.kind, with_experts.contains(part.layer));
    parts.push_back(forward ? forward_part(costs, kind) : backward_part(costs, kind));
    parts.back().layer = part.layer;
  }
  return parts;
}

}  // namespace

const PassOrder& PassPairs::pair(const schedule::Action& f, const StagePass& forward,
                                 const schedule::Action& b, const StagePass& backward,
                                 const KeepsWgrads& keeps_wgrads) {
  return find(f.stage, &forward, b, backward, keeps_wgrads);
}

const PassOrder& PassPairs::alone(const schedule::Action& b, const StagePass& backward,
                                  const KeepsWgrads& keeps_wgrads) {
  return find(-1, nullptr, b, backward, keeps_wgrads);
}

const PassOrder& PassPairs::find(int64_t forward_stage, const StagePass* forward,
                                 const schedule::Action& b, const StagePass& backward,
                                 const KeepsWgrads& keeps_wgrads) {
  const auto [at, unknown] = known_.try_emplace({forward_stage, b.stage, b.kind});
  PassOrder& found = at->second;
  if (!unknown) return found;
  const schedule::PassCosts costs = costs_.value_or(schedule::PassCosts{});
  auto parts_f = forward ? parts_of(*forward, costs, true) : std::vector<PairPart>();
  auto parts_b = parts_of(backward, costs, false);
  for (size_t i = 0; i < parts_b.size(); ++i) {
    if (keeps_wgrads(backward.part(i))) parts_b[i].weight_cost = 0;
    found.own_wgrads.push_back(delay_wgrad_ && parts_b[i].weight_cost > 0);
  }
  const bool head_last =
      head_shares_table_ && forward && has(*forward, SegmentKind::head) &&
      (has(backward, SegmentKind::embedding) || has(backward, SegmentKind::prediction_input));
  // The depths of multi-token prediction follow the head, and use the same output layer.
  size_t after = 0;
  while (head_last && forward->part(parts_f.size() - 1).kind != SegmentKind::head)
    parts_f.pop_back(), ++after;
  if (head_last) parts_f.pop_back(), ++after;
  const schedule::PairOptions options{.delay_wgrad = delay_wgrad_};
  found.steps = costs_ ? schedule::pair_order(parts_f, parts_b, options)
                       : schedule::alternating_pair_order(parts_f, parts_b, options);
  found.steps.insert(found.steps.end(), after, schedule::PairStep::forward);
  // Weight gradients that are not delayed run with their part.
  if (!delay_wgrad_) std::erase(found.steps, schedule::PairStep::weight_gradients);
  return found;
}

}  // namespace mtrain::pipeline
