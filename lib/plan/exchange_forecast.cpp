#include "plan/exchange_forecast.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "plan/executed_schedule.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

using schedule::PairPart;
using schedule::PassCosts;
using schedule::StageParts;

void append(std::vector<PairPart>& to, const std::vector<PairPart>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// Returns the parts of a stage. In its first recompute.layers layers, backward recomputes the
// forward of each group. The layers of multi-token prediction follow the head, and each is followed
// by the head once more, whose loss is not recomputed. The head may be apart, in the next stage.
StageParts parts_of(const RunPlan& plan, int64_t stage, const PassCosts& costs) {
  const std::vector<bool> experts = experts_of_stage(plan, stage);
  const bool last = stage + 1 == plan.layout.stages,
             predicts = stage == plan.layout.prediction_stage(), head = last && predicts;
  const spec::TokenPrediction mtp = predicts ? plan.model.mtp : spec::TokenPrediction{};
  const auto all = int64_t(experts.size()) - mtp.layers();
  const auto layers = [&](int64_t begin, int64_t end, bool with_head = false) {
    return stage_parts(costs, {experts.begin() + begin, experts.begin() + end}, with_head);
  };
  StageParts parts = {.forward = layers(0, all, head).forward, .backward = {}};
  std::vector<StageParts> depths;
  for (int64_t depth = 0; depth < mtp.depths; ++depth) {
    const int64_t layer = all + (mtp.repeated ? 0 : depth);
    StageParts further = layers(layer, layer + 1, head);
    append(parts.forward, further.forward);
    if (layer < plan.recompute.layers) {
      std::vector<PairPart> again = layers(layer, layer + 1).forward;
      append(again, further.backward);
      further.backward = std::move(again);
    }
    depths.push_back(std::move(further));
  }
  for (const StageParts& further : std::views::reverse(depths))
    append(parts.backward, further.backward);
  const int64_t recomputed = std::min(plan.recompute.layers, all);
  append(parts.backward, layers(recomputed, all, head).backward);
  const int64_t group = std::max<int64_t>(plan.recompute.group, 1);
  for (int64_t begin = (recomputed - 1) / group * group; recomputed > 0 && begin >= 0;
       begin -= group) {
    const StageParts part = layers(begin, std::min(begin + group, recomputed));
    append(parts.backward, part.forward);
    append(parts.backward, part.backward);
  }
  for (int64_t depth = 0; last && !predicts && depth <= plan.model.mtp.depths; ++depth) {
    append(parts.forward, stage_parts(costs, {}, true).forward);
    append(parts.backward, stage_parts(costs, {}, true).backward);
  }
  return parts;
}

}  // namespace

std::optional<ExchangeForecast> exchange_forecast(const RunPlan& plan) {
  if (!plan.pass_costs) return {};
  const bool pairs = plan.overlap.overlap_moe_expert_parallel_comm;
  const schedule::Schedule s = executed_schedule(plan);
  const auto play = [&](const PassCosts& costs) {
    schedule::ScheduleCosts all = costs_in_order(plan.pipeline);
    all.stages.clear();
    for (int64_t stage = 0; stage < plan.layout.stages; ++stage) {
      all.parts.push_back(parts_of(plan, stage, costs));
      // The cost of a weight gradient that is an action of its own.
      schedule::StageCost& cost = all.stages.emplace_back(schedule::StageCost{.W = 0});
      for (const PairPart& part : all.parts.back().backward) cost.W += part.weight_cost;
    }
    all.pair.delay_wgrad = pairs && plan.pipeline.split_wgrad;
    all.pairs_take_turns = !pairs;
    all.exchange_chunks = plan.overlap.moe_dispatch_chunks;
    return simulate(s, all);
  };
  PassCosts free = *plan.pass_costs;
  free.exchange = {};
  free.exchange_latency = {};
  const schedule::Timeline timeline = play(*plan.pass_costs);
  return ExchangeForecast{.step = timeline.step,
                          .without = play(free).step,
                          .paired = timeline.paired,
                          .unpaired = timeline.unpaired};
}

}  // namespace mtrain::plan
