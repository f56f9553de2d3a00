#include "schedule/pass_costs.h"

#include <algorithm>

#include "base/error.h"

namespace mtrain::schedule {

namespace {

// An expert has three matrices; its first GEMM uses two of them.
constexpr double kShareOfFirst = 2.0 / 3;

PairPart exchange(double cost, double latency, bool host_waits) {
  return {.kind = PairPartKind::exchange,
          .cost = cost,
          .weight_cost = 0,
          .host_waits = host_waits,
          .latency = latency};
}
PairPart compute(double cost, double weights, double ahead = 0) {
  return {.cost = cost, .weight_cost = weights, .ahead = ahead};
}

// A part's own gradients, after those of a share of the shared expert.
PairPart with_shared(const PassCosts& c, const PartCost& own, double share) {
  if (!c.shared_overlaps) return compute(own.backward, own.weights);
  const double ahead = share * (c.shared.backward + c.shared.weights);
  return compute(own.backward + ahead, own.weights, ahead);
}

}  // namespace

PairPart forward_part(const PassCosts& c, PassPart part) {
  const double first = c.shared_overlaps ? kShareOfFirst * c.shared.forward : 0,
               second = c.shared.forward - first;
  switch (part) {
    case PassPart::attention: return compute(c.attention.forward, 0);
    case PassPart::mlp: return compute(c.mlp.forward, 0);
    case PassPart::route: return compute(c.route.forward, 0);
    case PassPart::dispatch:
      return exchange(c.exchange.forward, c.exchange_latency.forward, c.host_reads_rows);
    case PassPart::experts: return compute(first + c.experts.forward, 0, first);
    case PassPart::combine: return exchange(c.exchange.forward, c.exchange_latency.forward, false);
    case PassPart::merge: return compute(second, 0, second);
    case PassPart::head: return compute(c.head.forward, 0);
    case PassPart::other: return {};
  }
  throw BugError("a part of a forward");
}

PairPart backward_part(const PassCosts& c, PassPart part) {
  switch (part) {
    case PassPart::attention: return compute(c.attention.backward, c.attention.weights);
    case PassPart::mlp: return compute(c.mlp.backward, c.mlp.weights);
    case PassPart::route: return with_shared(c, c.route, kShareOfFirst);
    case PassPart::dispatch:
    case PassPart::combine:
      return exchange(c.exchange.backward, c.exchange_latency.backward, false);
    case PassPart::experts: {
      PairPart experts = with_shared(c, c.experts, 1 - kShareOfFirst);
      experts.weights_first = 1 - kShareOfFirst;  // those of the second GEMM
      return experts;
    }
    case PassPart::merge:
      return c.shared_overlaps ? PairPart{} : compute(c.shared.backward, c.shared.weights);
    case PassPart::head: return compute(c.head.backward, c.head.weights);
    case PassPart::other: return {};
  }
  throw BugError("a part of a backward");
}

StageParts stage_parts(const PassCosts& c, const std::vector<bool>& with_experts, bool with_head) {
  using enum PassPart;
  StageParts parts;
  const auto add = [&](PassPart part, int64_t layer) {
    parts.forward.push_back(forward_part(c, part));
    parts.backward.push_back(backward_part(c, part));
    parts.forward.back().layer = parts.backward.back().layer = layer;
  };
  for (size_t i = 0; i < with_experts.size(); ++i) {
    add(attention, int64_t(i));
    if (with_experts[i])
      for (const PassPart part : {route, dispatch, experts, combine, merge}) add(part, int64_t(i));
    else
      add(mlp, int64_t(i));
  }
  if (with_head) add(head, -1);
  std::ranges::reverse(parts.backward);
  return parts;
}

}  // namespace mtrain::schedule
