#include "pipeline/pass_pairs.h"

#include <algorithm>
#include <set>

namespace mtrain::pipeline {

namespace {

using model::SegmentKind;
using model::StagePass;
using schedule::PairPart;

// The costs of a kind of part; null if it takes next to no time.
const plan::PartCost* cost_of(const plan::PassCosts& costs, SegmentKind kind, bool experts) {
  switch (kind) {
    case SegmentKind::attention: return &costs.attention;
    case SegmentKind::mlp: return experts ? &costs.experts : &costs.mlp;
    case SegmentKind::route: return &costs.route;
    case SegmentKind::dispatch:
    case SegmentKind::combine: return &costs.exchange;
    case SegmentKind::merge: return &costs.shared;
    case SegmentKind::head: return &costs.head;
    case SegmentKind::embedding:
    case SegmentKind::recompute:
    case SegmentKind::handoff: return nullptr;
  }
  throw BugError("a part of a pass");
}

std::vector<PairPart> parts_of(const StagePass& pass, const std::optional<plan::PassCosts>& costs,
                               bool forward) {
  std::set<int64_t> with_experts;
  for (size_t i = 0; i < pass.size(); ++i)
    if (pass.part(i).kind == SegmentKind::route) with_experts.insert(pass.part(i).layer);
  std::vector<PairPart> parts;
  for (size_t i = 0; i < pass.size(); ++i) {
    const StagePass::Part& part = pass.part(i);
    PairPart& p = parts.emplace_back();
    if (communicates(part.kind)) p.kind = schedule::PairPartKind::exchange;
    const plan::PartCost* cost =
        costs ? cost_of(*costs, part.kind, with_experts.contains(part.layer)) : nullptr;
    if (!cost) continue;
    p.cost = forward ? cost->forward : cost->backward;
    if (!forward) p.weight_cost = cost->weights;
    // The numbers of rows are read once, before the rows leave.
    p.host_waits = forward && part.kind == SegmentKind::dispatch && costs->host_reads_rows;
  }
  return parts;
}

}  // namespace

const PassPair& PassPairs::pair(const schedule::Action& f, const StagePass& forward,
                                const schedule::Action& b, const StagePass& backward,
                                const KeepsWgrads& keeps_wgrads) {
  const auto [at, unknown] = known_.try_emplace({f.stage, b.stage, b.kind});
  PassPair& found = at->second;
  if (!unknown) return found;
  const auto parts_f = parts_of(forward, costs_, true);
  auto parts_b = parts_of(backward, costs_, false);
  for (size_t i = 0; i < parts_b.size(); ++i) {
    if (keeps_wgrads(backward.part(i))) parts_b[i].weight_cost = 0;
    found.own_wgrads.push_back(delay_wgrad_ && parts_b[i].weight_cost > 0);
  }
  const schedule::PairOptions options{.delay_wgrad = delay_wgrad_};
  found.steps = costs_ ? schedule::pair_order(parts_f, parts_b, options)
                       : schedule::alternating_pair_order(parts_f, parts_b, options);
  // Weight gradients that are not delayed run with their part.
  if (!delay_wgrad_) std::erase(found.steps, schedule::PairStep::weight_gradients);
  return found;
}

}  // namespace mtrain::pipeline
