#include "predict/layout_search.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "plan/change_layout.h"
#include "predict/pruned_search.h"
#include "predict/recorded_step.h"
#include "predict/step_bound.h"
#include "predict/step_model.h"

namespace mtrain::predict {

namespace {

constexpr const char* kMemory = "do not fit into the memory";

class Search {
 public:
  Search(const plan::RecipeSource& source, const Recipe& recipe, const RunPlan& plan,
         const plan::Cluster& cluster, const LaunchCosts& costs, const LayoutSearch& search)
      : source_(source),
        plan_(plan),
        cluster_(cluster),
        costs_(costs),
        search_(search),
        space_(source, recipe, plan.layout, cluster.domain_gpus, search.fields),
        scratch_(plan) {
    MT_CHECK(source.world > 0, "a search without a number of ranks");
    bounds_.resize(space_.choices().size());
  }

  LayoutRanking run() {
    const std::vector<LayoutChoice>& all = space_.choices();
    const bool sizes = std::ranges::any_of(
        std::array{LayoutField::tp, LayoutField::pp, LayoutField::cp, LayoutField::ep},
        [&](LayoutField field) { return search_.fields.free.contains(field); });
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, size_t> groups;
    const SearchProblem problem{
        .candidates = all.size(),
        .refuse = [&](size_t i) { return refuse(i); },
        .bound = [&](size_t i) { return bounds_[i].bound; },
        .guess = [&](size_t i) { return bounds_[i].guess; },
        .play = [&](size_t i, Refusal& why) { return play(i, why); },
        .group =
            [&](size_t i) {
              const LayoutChoice& c = all[i];
              return sizes
                         ? groups.try_emplace({c.tp, c.pp, c.cp, c.ep}, groups.size()).first->second
                         : i;
            },
        .distance = [&](size_t i) { return space_.distance(all[i]); },
        .top = search_.top,
        .most_plays = search_.most_plays};
    const SearchResult result = pruned_search(problem);
    LayoutRanking ranking{.candidates = all.size(),
                          .legal = legal_,
                          .played = result.played.size(),
                          .left = result.left.count,
                          .lowest_left = result.lowest_left};
    for (const PlayedCandidate& best : result.ranked) ranking.ranked.push_back(ranked(best.index));
    for (const PlayedCandidate& p : result.played)
      if (search_.objective == Objective::speed) ranking.front.push_back(ranked(p.index));
    if (search_.objective == Objective::memory) ranking.front = ranking.ranked;
    keep_front(ranking.front);
    for (const auto& [reason, out] : result.refused) add(reason, out, ranking);
    if (result.slower.count > 0)
      add(search_.objective == Objective::speed ? "are slower even at best"
                                                : "need more memory even at best",
          result.slower, ranking);
    if (result.left.count > 0) add("were not played", result.left, ranking);
    std::ranges::stable_sort(ranking.out, std::greater<>(), &LayoutsOut::count);
    const double usable = cluster_.usable_bytes();
    if (plan_.fullest().total() <= usable && recording_obstacle(plan_).empty()) {
      const Prediction p = predict(plan_);
      ranking.own = layout_of(space_.own(), {}, plan_, p);
      ranking.band = p.band;
    }
    if (!ranking.ranked.empty()) ranking.band = known_.at(result.ranked[0].index).prediction.band;
    return ranking;
  }

 private:
  struct Bounds {
    double bound = 0, guess = 0;
  };
  struct Known {
    plan::Change change;
    std::optional<RunPlan> plan;
    Prediction prediction;
  };

  std::optional<Refusal> refuse(size_t i) {
    const LayoutChoice& c = space_.choices()[i];
    if (auto obstacle = space_.obstacle(c)) return obstacle;
    const Recipe& r = space_.recipe(c);
    Diagnostics diagnostics;
    plan::validate_recomputation(r, diagnostics);
    if (diagnostics.has_errors()) return refused_by_rules(diagnostics);
    // Choices that differ in recomputation alone follow each other.
    if (const LayoutChoice key = key_of(c, r); checked_ != key) {
      checked_ = key;
      refused_ = check(r);
    } else if (!refused_) {
      plan::change_recomputation(r, scratch_);
    }
    if (refused_) return refused_;
    ++legal_;
    const double usable = cluster_.usable_bytes();
    if (own_memory(0) > usable || own_memory(scratch_.layout.pp - 1) > usable)
      return Refusal{
          kMemory, [this] {
            return too_large(std::max(own_memory(0), own_memory(scratch_.layout.pp - 1)));
          }};
    if (search_.objective == Objective::memory) {
      const double most = std::max(own_memory(0), own_memory(scratch_.layout.pp - 1));
      bounds_[i] = {most, most};
      return {};
    }
    const StepBound step = step_bound(scratch_, cluster_, costs_);
    bounds_[i] = {step.seconds, step.guess};
    return {};
  }

  // What the rules read of a choice, but for those of recomputation.
  static LayoutChoice key_of(const LayoutChoice& c, const Recipe& r) {
    return plan::recomputation_changes_overlap(r) ? c : c.with(recipe::RecomputeGranularity::none);
  }

  // Sets scratch_ to the recipe's layout, unless a rule refuses it.
  std::optional<Refusal> check(const Recipe& r) {
    plan::Layout layout = plan::layout_of(r, source_.world);
    plan::Overlap overlap = plan::resolve_overlap(r, layout);
    Diagnostics diagnostics;
    plan::validate_layout(r, layout, overlap, diagnostics);
    if (diagnostics.has_errors()) return refused_by_rules(diagnostics);
    plan::change_layout(r, std::move(layout), std::move(overlap), scratch_);
    return {};
  }

  double own_memory(int64_t pp_rank) const {
    plan::PairOrders orders;
    return plan::estimate_own_memory(scratch_, pp_rank, orders).total();
  }

  static Refusal refused_by_rules(const Diagnostics& diagnostics) {
    for (const recipe::Diagnostic& d : diagnostics.sorted())
      if (d.severity == recipe::Severity::error)
        return {"are refused by a rule of " + d.field, [text = d.reason] { return text; }};
    throw BugError("a refused recipe without an error");
  }

  std::string too_large(double bytes) const {
    return fmt::format("{} of {} usable", human_bytes(bytes), human_bytes(cluster_.usable_bytes()));
  }

  Prediction predict(const RunPlan& plan) const {
    if (search_.play) return search_.play(plan);
    return StepModel(plan, cluster_).price(costs_);
  }

  std::optional<double> play(size_t i, Refusal& why) {
    Known known{.change = space_.change(space_.choices()[i])};
    auto trial = plan::plan_trial(source_, known.change, plan_.model.vocab);
    if (!trial) {
      why = {"are refused when the recipe is loaded in full",
             [text = known.change.words()] { return text; }};
      return {};
    }
    known.plan = std::move(trial->plan);
    const double memory = known.plan->fullest().total();
    if (memory > cluster_.usable_bytes()) {
      why = {kMemory, [this, memory] { return too_large(memory); }};
      return {};
    }
    if (const std::string obstacle = recording_obstacle(*known.plan); !obstacle.empty()) {
      why = {"cannot be predicted", [obstacle] { return obstacle; }};
      return {};
    }
    if (search_.objective == Objective::speed) known.prediction = predict(*known.plan);
    const double value = search_.objective == Objective::speed ? known.prediction.step_s : memory;
    known_.insert_or_assign(i, std::move(known));
    return value;
  }

  static RankedLayout layout_of(const LayoutChoice& choice, const plan::Change& change,
                                const RunPlan& plan, const Prediction& p) {
    return {.choice = choice,
            .change = change,
            .dp = plan.layout.dp,
            .step_s = p.step_s,
            .tokens_per_s = p.tokens_per_s,
            .mfu = p.mfu,
            .memory = plan.fullest().total()};
  }
  RankedLayout ranked(size_t i) {
    Known& known = known_.at(i);
    if (search_.objective == Objective::memory && known.prediction.step_s == 0)
      known.prediction = predict(*known.plan);
    return layout_of(space_.choices()[i], known.change, *known.plan, known.prediction);
  }

  static void keep_front(std::vector<RankedLayout>& layouts) {
    std::ranges::stable_sort(layouts, [](const RankedLayout& a, const RankedLayout& b) {
      return std::pair{a.step_s, a.memory} < std::pair{b.step_s, b.memory};
    });
    std::vector<RankedLayout> front;
    for (RankedLayout& layout : layouts)
      if (front.empty() || layout.memory < front.back().memory) front.push_back(std::move(layout));
    layouts = std::move(front);
  }

  void add(const std::string& reason, const RefusedCandidates& out, LayoutRanking& ranking) const {
    ranking.out.push_back(
        {reason, out.count, space_.text(space_.choices()[out.nearest]), out.detail});
  }

  const plan::RecipeSource& source_;
  const RunPlan& plan_;
  const plan::Cluster& cluster_;
  const LaunchCosts& costs_;
  const LayoutSearch& search_;
  LayoutSpace space_;
  RunPlan scratch_;  // with the layout of the candidate at hand
  // The last choice that was checked, without what its rules do not read, and the result.
  std::optional<LayoutChoice> checked_;
  std::optional<Refusal> refused_;
  std::vector<Bounds> bounds_;
  std::map<size_t, Known> known_;  // what was played, by index
  size_t legal_ = 0;
};

}  // namespace

LayoutRanking search_layouts(const plan::RecipeSource& source, const Recipe& recipe,
                             const RunPlan& plan, const plan::Cluster& cluster,
                             const LaunchCosts& costs, const LayoutSearch& search) {
  return Search(source, recipe, plan, cluster, costs, search).run();
}

}  // namespace mtrain::predict
