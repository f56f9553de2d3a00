#include "predict/shorter_step.h"

#include <algorithm>
#include <array>

#include "base/math.h"
#include "plan/recipe_schedule.h"
#include "schedule/catalog.h"

namespace mtrain::predict {

RunPlan with_micro_batches(RunPlan plan, int64_t micro_batches) {
  plan::Layout& l = plan.layout;
  l.micro_batches = plan.schedule_shape.micro_batches = micro_batches;
  plan.train.global_batch_size = l.step_micro_batches() * l.micro_batch * l.dp;
  plan.schedule = plan::schedule_of(plan.schedule_shape);
  return plan;
}

FewMicroBatches few_micro_batches(const RunPlan& plan) {
  const plan::ScheduleShape& s = plan.schedule_shape;
  if (s.pp == 1) return {2, 1};
  if (!schedule::schedule_kind(s.schedule).in_groups) return {2 * s.pp, 1};
  const int64_t group = s.group > 0 ? s.group : s.pp;
  return {2 * group, group};
}

int64_t further_groups(const RunPlan& plan, const FewMicroBatches& few) {
  const int64_t more = plan.layout.micro_batches - few.few;
  return plan.schedule_shape.table || more <= few.step || more % few.step != 0 ? 0
                                                                               : more / few.step;
}

std::optional<RunPlan> with_three_micro_batches(const RunPlan& plan) {
  const int64_t all = plan.layout.micro_batches;
  if (plan.layout.pp == 1 || all <= 3 || plan.pipeline.deferred_outputs > 0) return {};
  RunPlan three = plan;
  const std::array kept{int64_t{0}, all / 2, all - 1};
  for (schedule::ActionList& list : three.schedule.ranks) {
    if (std::ranges::any_of(list, &schedule::Action::overlaps_next)) return {};
    std::erase_if(list, [&](const schedule::Action& a) {
      return std::ranges::find(kept, a.micro_batch) == kept.end();
    });
    for (schedule::Action& a : list)
      a.micro_batch = std::ranges::find(kept, a.micro_batch) - kept.begin();
  }
  three.schedule.micro_batches = 3;
  plan::Layout& l = three.layout;
  l.micro_batches = three.schedule_shape.micro_batches = 3;
  three.train.global_batch_size = l.step_micro_batches() * l.micro_batch * l.dp;
  return three;
}

namespace {

// The fewest layers that remain of a run of equal periods: ranks gather parameters for up to two
// layers ahead.
constexpr int64_t kLeastLayers = 3;
constexpr int64_t kLongestPeriod = 8;

// Layers from `begin`, of which `periods` follow each other in which each layer equals that one
// period later.
struct LayerRun {
  int64_t begin = 0, period = 1, periods = 0;
  int64_t kept() const { return std::max<int64_t>(1, ceil_div(kLeastLayers, period)); }
  int64_t saved() const { return (periods - kept() - 1) * period; }
};

// Returns the run between two layers of the model that saves most.
LayerRun longest_run(const RunPlan& plan, int64_t begin, int64_t end) {
  const auto same = [&](int64_t a, int64_t b) {
    return plan.fp8.has(a) == plan.fp8.has(b) && plan.model.layer(a) == plan.model.layer(b);
  };
  LayerRun best;
  for (int64_t period = 1; period <= kLongestPeriod; ++period)
    for (int64_t from = begin; from < end;) {
      int64_t to = from;  // of the run's layers that equal the one a period later
      while (to + period < end && same(to, to + period)) ++to;
      const LayerRun run{from, period, (to - from) / period + 1};
      if (to > from && run.saved() > std::max<int64_t>(0, best.saved())) best = run;
      from = to + 1;
    }
  return best;
}

// Removes layers of a stage from the plan.
void remove_layers(RunPlan& plan, int64_t stage, int64_t begin, int64_t count) {
  auto& layers = plan.model.layers;
  layers.erase(layers.begin() + begin, layers.begin() + begin + count);
  plan.layout.layers_of_stage[size_t(stage)] -= count;
  for (int64_t* bound : {&plan.fp8.begin, &plan.fp8.end})
    if (*bound > begin) *bound = std::max(begin, *bound - count);
}

}  // namespace

std::optional<FewLayers> with_few_layers(const RunPlan& plan) {
  if (plan.recompute.group > 1) return {};
  const std::vector<int64_t>& of_stage = plan.layout.layers_of_stage;
  FewLayers few{plan, plan, std::vector<double>(of_stage.size())};
  int64_t saved = 0, end = plan.model.main_layers();
  // Backward, since the places of earlier layers then stay.
  int64_t after = plan.model.layer_count();
  for (size_t stage = of_stage.size(); stage-- > 0;) {
    const int64_t first = after - of_stage[stage];
    // The first layers of a stage may be recomputed, or delay their weight gradients.
    int64_t begin = first;
    for (const int64_t special : {plan.recompute.layers, plan.pipeline.delayed_layers})
      if (special < of_stage[stage]) begin = std::max(begin, first + special);
    const LayerRun run = longest_run(plan, begin, std::min(after, end));
    after = first;
    if (run.saved() <= 0) continue;
    const auto cut = [&](RunPlan& shorter, int64_t kept) {
      remove_layers(shorter, int64_t(stage), run.begin, (run.periods - kept) * run.period);
    };
    cut(few.fewer, run.kept());
    cut(few.more, run.kept() + 1);
    few.periods[stage] = double(run.periods - run.kept());
    saved += run.saved();
  }
  // Two records of half of the layers cost as much as all of them.
  if (2 * saved <= plan.model.layer_count()) return {};
  for (RunPlan* shorter : {&few.fewer, &few.more})
    shorter->recompute.layers =
        std::min(plan.recompute.layers, std::ranges::max(shorter->layout.layers_of_stage));
  return few;
}

}  // namespace mtrain::predict
