// Searches for layouts: pruning finds what trying everything finds, bounds hold, and quick checks
// of a layout agree with loading its recipe in full.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <tuple>

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "interchange/model_source.h"
#include "plan/change_layout.h"
#include "plan/load_recipe.h"
#include "predict/launch_class.h"
#include "predict/layout_search.h"
#include "predict/measured_costs.h"
#include "predict/pruned_search.h"
#include "predict/recorded_step.h"
#include "predict/sheet_costs.h"
#include "predict/step_bound.h"
#include "predict/step_model.h"

namespace predict_search_test {

using namespace mtrain;
using namespace mtrain::predict;

namespace {

constexpr int64_t kVocab = 256;

const char* kSmall =
    "model: {architecture: llama, num_layers: 4, hidden_size: 64, num_attention_heads: 4,\n"
    "        num_query_groups: 2, ffn_hidden_size: 96}\n"
    "dataset: {train: unused, seq_length: 32}\n"
    "train: {run_dir: unused, steps: 20, global_batch_size: 16, micro_batch_size: 1, device: cpu}\n"
    "mixed_precision: fp32\n"
    "distributed: {strategy: megatron_ddp}\n";

struct Planned {
  plan::RecipeSource source;
  Recipe recipe;
  RunPlan plan;
};

Planned planned(int64_t ranks, std::vector<std::string> settings = {}) {
  plan::RecipeSource source{.models = &interchange::model_source(),
                            .path = "small.yaml",
                            .settings = std::move(settings),
                            .world = ranks,
                            .text = kSmall};
  auto trial = plan::plan_trial(source, {}, kVocab);
  REQUIRE(trial);
  return {std::move(source), std::move(trial->recipe), std::move(trial->plan)};
}

plan::Cluster cluster(double memory_gib = 4, int64_t domain = 4, int64_t gbps = 32) {
  Diagnostics diagnostics;
  plan::Cluster c = plan::read_cluster_text(
      fmt::format("gpu: {{kind: cpu, memory_gib: {}, peak_tflops: {{fp32: 0.1, bf16: 0.1}}}}\n"
                  "domain: {{gpus: {}, gbps: {}}}\nnetwork: {{gbps: 8}}\nnodes: 8\n",
                  memory_gib, domain, gbps),
      "cluster.yaml", diagnostics);
  diagnostics.throw_if_errors();
  return c;
}

// Keeps which launches a prediction asks for.
class AskedCosts : public LaunchCosts {
 public:
  struct Asked {
    std::string name;
    LaunchWork work;
  };
  LaunchCost cost(const LaunchWork& w, const plan::GroupLink*) const override {
    asked.push_back({std::string(w.name), w});
    return {.seconds = 1e-6};
  }
  double gap_seconds() const override { return 0; }
  double host_seconds() const override { return 0; }
  double slowdown(device::StreamKind) const override { return 0; }
  mutable std::vector<Asked> asked;
};

// A calibration with made-up times of most of a plan's launches: those of a name are up to twice as
// fast or as slow as others of their class.
MeasuredCosts measured(const RunPlan& plan, const plan::Cluster& c, std::mt19937& random) {
  const SheetCosts sheet(c, {});
  const AskedCosts seen;
  StepModel(plan, c).price(seen);
  const auto factor = [&] { return std::exp2(double(random() % 2001) / 1000 - 1); };
  plan::Calibration calibration{.gap_s = 2e-6, .slowdowns = {{"dp_grad", 0.3}, {"tp", 0.1}}};
  for (const auto& [name, w] : seen.asked) {
    if (w.wire_bytes > 0 || communicates(w.stream.kind)) continue;
    const bool known = calibration.find(name, w.dtype);
    if (!known && random() % 4 == 0) continue;
    if (!known) calibration.launches.push_back({.name = name, .dtype = w.dtype});
    for (plan::LaunchTimes& t : calibration.launches) {
      if (t.name != name || t.dtype != w.dtype) continue;
      const double own = factor();
      for (const double scale : {0.5, 1.0, 4.0}) {
        plan::LaunchPoint p{scale * w.flops, scale * w.read, scale * w.written};
        LaunchWork scaled = w;
        scaled.name = name;
        scaled.flops = p.flops, scaled.read = p.read, scaled.written = p.written;
        p.seconds = (1e-6 + sheet.cost(scaled, nullptr).seconds) * own * std::sqrt(factor());
        t.points.push_back(p);
      }
    }
  }
  return MeasuredCosts(std::move(calibration), c, {}, {});
}

}  // namespace

TEST_CASE("a pruned search finds what an exhaustive one finds") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int problem = 0; problem < 50; ++problem) {
    INFO("problem " << problem);
    const size_t count = size_t(1 + below(60)), groups = size_t(1 + below(20));
    std::vector<double> value(count), bound(count), guess(count);
    std::vector<size_t> group(count);
    std::vector<int> refused(count);
    for (size_t i = 0; i < count; ++i) {
      value[i] = 1 + below(40);  // ties are frequent
      bound[i] = value[i] - below(15);
      guess[i] = value[i] + below(21) - 10;
      group[i] = size_t(below(int(groups)));
      refused[i] = below(5);  // 0: at once, 1: when it is played
    }
    size_t plays = 0;
    SearchProblem p{.candidates = count,
                    .refuse = [&](size_t i) -> std::optional<Refusal> {
                      if (refused[i] == 0) return Refusal{"a rule"};
                      return {};
                    },
                    .bound = [&](size_t i) { return bound[i]; },
                    .guess = [&](size_t i) { return guess[i]; },
                    .play = [&](size_t i, Refusal& why) -> std::optional<double> {
                      ++plays;
                      why = {"memory"};
                      if (refused[i] == 1) return {};
                      return value[i];
                    },
                    .group = [&](size_t i) { return group[i]; },
                    .distance = [&](size_t i) { return int(i % 7); }};
    const SearchResult pruned = pruned_search(p);
    size_t counted = pruned.played.size() + pruned.slower.count + pruned.left.count;
    for (const auto& [reason, out] : pruned.refused) counted += out.count;
    CHECK(counted == count);
    std::map<size_t, std::pair<double, size_t>> best;
    for (size_t i = 0; i < count; ++i) {
      if (refused[i] < 2) continue;
      const auto [at, added] = best.try_emplace(group[i], value[i], i);
      if (!added) at->second = std::min(at->second, {value[i], i});
    }
    std::vector<std::pair<double, size_t>> all;
    for (const auto& [g, b] : best) all.push_back(b);
    std::ranges::sort(all);
    if (all.size() > p.top) all.resize(p.top);
    std::vector<std::pair<double, size_t>> found;
    for (const PlayedCandidate& c : pruned.ranked) found.emplace_back(c.value, c.index);
    CHECK(found == all);
  }
}

TEST_CASE("a search without time for all plays says what is left") {
  SearchProblem p{
      .candidates = 9,
      .refuse = [](size_t) { return std::optional<Refusal>(); },
      .bound = [](size_t i) { return double(i); },
      .guess = [](size_t i) { return double(i); },
      .play = [](size_t i, Refusal&) { return std::optional<double>(10.0 + double(i)); },
      .group = [](size_t i) { return i; },
      .distance = [](size_t i) { return 9 - int(i); },
      .top = 3,
      .most_plays = 4};
  const SearchResult r = pruned_search(p);
  CHECK(r.ranked.size() == 3);
  CHECK(r.left.count == 5);
  CHECK(r.left.nearest == 8);
  CHECK(r.lowest_left == 4);
}

TEST_CASE("quick checks of a layout agree with its recipe loaded in full") {
  for (const auto& [ranks, settings] :
       {std::pair{int64_t{4}, std::vector<std::string>{}},
        {8, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
        {4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
        {4,
         {"model.moe.num_experts=4", "model.moe.ffn_hidden_size=48", "model.moe.router_topk=2",
          "distributed.ep_size=2"}}}) {
    const Planned p = planned(ranks, settings);
    LayoutSpace space(p.source, p.recipe, p.plan.layout, 4, SearchFields::all());
    RunPlan scratch = p.plan;
    REQUIRE(space.choices().size() > 50);
    size_t legal = 0;
    for (size_t i = 0; i < space.choices().size(); i += 5) {
      const LayoutChoice& c = space.choices()[i];
      INFO(ranks << " ranks: " << space.text(c) << "; " << space.change(c).words());
      const auto trial = plan::plan_trial(p.source, space.change(c), kVocab);
      if (space.obstacle(c)) {
        CHECK_FALSE(trial);
        continue;
      }
      const Recipe& quick = space.recipe(c);
      const plan::Layout layout = plan::layout_of(quick, ranks);
      const plan::Overlap overlap = plan::resolve_overlap(quick, layout);
      Diagnostics diagnostics;
      plan::validate_recomputation(quick, diagnostics);
      plan::validate_layout(quick, layout, overlap, diagnostics);
      INFO(diagnostics.text(recipe::Severity::error));
      CHECK(trial.has_value() == !diagnostics.has_errors());
      if (!trial || diagnostics.has_errors()) continue;
      ++legal;
      CHECK(print_recipe(quick, false) == print_recipe(trial->recipe, false));
      plan::change_layout(quick, layout, overlap, scratch);
      plan::PairOrders orders;
      for (int64_t rank = 0; rank < layout.pp; ++rank)
        CHECK(plan::estimate_own_memory(scratch, rank, orders).total() <=
              trial->plan.memory[size_t(rank)].total() * (1 + 1e-9));
    }
    CHECK(legal > 5);
  }
}

TEST_CASE("no bound of a step is above its prediction") {
  const plan::Cluster c = cluster();
  const SheetCosts costs(c, {});
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const Planned p = planned(ranks);
    LayoutSpace space(p.source, p.recipe, p.plan.layout, 4, SearchFields::all());
    std::mt19937 random(unsigned(ranks) + 3);
    for (int i = 0; i < 25; ++i) {
      const LayoutChoice& choice = space.choices()[random() % space.choices().size()];
      const auto trial = plan::plan_trial(p.source, space.change(choice), kVocab);
      if (!trial) continue;
      INFO(ranks << " ranks: " << space.change(choice).words());
      const double played = StepModel(trial->plan, c).price(costs).step_s;
      CHECK(step_bound(trial->plan, c, costs).seconds <= played * (1 + 1e-9));
    }
  }
}

TEST_CASE("no bound of a step with several flushes is above its prediction") {
  const plan::Cluster c = cluster();
  const SheetCosts costs(c, {});
  for (const char* schedule : {"1f1b", "zero_bubble"})
    for (const int64_t local : {2, 4, 16}) {
      INFO(schedule << ", " << local << " samples a flush");
      const std::string text = fmt::format(
          "model: {{architecture: llama, num_layers: 4, hidden_size: 64, num_attention_heads: 4, "
          "ffn_hidden_size: 96}}\ndataset: {{train: unused, seq_length: 32}}\n"
          "step_scheduler: {{global_batch_size: 16, local_batch_size: {}, max_steps: 20}}\n"
          "distributed: {{pp_size: 2, strategy: megatron_ddp, "
          "pipeline: {{pp_schedule: {}, pp_microbatch_size: 1}}}}\n"
          "mixed_precision: fp32\ntrain: {{run_dir: unused, device: cpu}}\n",
          local, schedule);
      // The head's stage takes several times as long as the other one.
      const auto trial = plan::plan_trial({.models = &interchange::model_source(),
                                           .path = "flushes.yaml",
                                           .settings = {},
                                           .world = 2,
                                           .text = text},
                                          {}, 4096);
      REQUIRE(trial);
      CHECK(trial->plan.layout.flushes == 16 / local);
      const double played = StepModel(trial->plan, c).price(costs).step_s;
      CHECK(step_bound(trial->plan, c, costs).seconds <= played * (1 + 1e-9));
    }
}

TEST_CASE("a search from full recomputation also tries less of it") {
  const Planned p = planned(2, {"recompute.granularity=full"});
  const plan::Cluster c = cluster();
  LayoutSearch search;
  search.fields.free = {LayoutField::recompute};
  const LayoutRanking r = search_layouts(p.source, p.recipe, p.plan, c, SheetCosts(c, {}), search);
  CHECK(r.candidates == 3);
  CHECK(r.legal == r.candidates);
  REQUIRE_FALSE(r.ranked.empty());
  CHECK(r.ranked[0].choice.recompute == recipe::RecomputeGranularity::none);
}

TEST_CASE("a search of small real problems finds what predicting every layout finds") {
  std::mt19937 random(11);
  const auto one_of = [&](const auto& list) { return list[random() % std::size(list)]; };
  constexpr size_t kProblems = 50, kMostChoices = 40;
  size_t played = 0, predicted = 0;
  for (size_t problem = 0; problem < kProblems;) {
    const bool experts = problem % 2 == 1;
    std::vector<std::string> settings{
        fmt::format("model.num_layers={}", one_of(std::array{2, 4})),
        fmt::format("model.hidden_size={}", one_of(std::array{64, 256, 1024})),
        fmt::format("model.ffn_hidden_size={}", one_of(std::array{96, 512, 4096})),
        fmt::format("dataset.seq_length={}", one_of(std::array{32, 256, 2048})),
        fmt::format("distributed.strategy={}", one_of(std::array{"fsdp2", "megatron_ddp"}))};
    if (experts)
      settings.insert(settings.end(), {"model.moe.num_experts=4", "model.moe.ffn_hidden_size=384",
                                       "model.moe.router_topk=2"});
    const Planned p = planned(one_of(std::array{2, 4, 8}), settings);
    const plan::Cluster c = cluster(4, one_of(std::array{2, 4}), one_of(std::array{4, 32, 400}));
    LayoutSearch search{.top = one_of(std::array<size_t, 3>{1, 3, 10}),
                        .most_plays = std::numeric_limits<size_t>::max()};
    search.fields.free.clear();
    for (int i = 0; i < 3; ++i)
      search.fields.free.insert(one_of(
          std::array{LayoutField::tp, LayoutField::pp, LayoutField::ep, LayoutField::stages,
                     LayoutField::schedule, LayoutField::strategy, LayoutField::zero,
                     LayoutField::replicas, LayoutField::micro_batch, LayoutField::recompute}));
    LayoutSpace space(p.source, p.recipe, p.plan.layout, c.domain_gpus, search.fields);
    if (space.choices().size() < 4 || space.choices().size() > kMostChoices) continue;
    INFO("problem " << problem << ", " << p.plan.layout.world << " ranks, "
                    << fmt::format("{}", fmt::join(settings, " ")));
    std::unique_ptr<LaunchCosts> costs;
    if (problem % 3 == 0)
      costs = std::make_unique<MeasuredCosts>(measured(p.plan, c, random));
    else
      costs = std::make_unique<SheetCosts>(c, plan::StackConstants{});
    ++problem;
    using Sizes = std::tuple<int64_t, int64_t, int64_t, int64_t>;
    const bool sizes = search.fields.free.contains(LayoutField::tp) ||
                       search.fields.free.contains(LayoutField::pp) ||
                       search.fields.free.contains(LayoutField::ep);
    std::map<std::pair<Sizes, size_t>, std::pair<double, size_t>> best;
    for (size_t i = 0; i < space.choices().size(); ++i) {
      const LayoutChoice& choice = space.choices()[i];
      const auto trial = plan::plan_trial(p.source, space.change(choice), kVocab);
      if (!trial || !recording_obstacle(trial->plan).empty() ||
          trial->plan.fullest().total() > c.usable_bytes())
        continue;
      const double step = StepModel(trial->plan, c).price(*costs).step_s;
      ++predicted;
      INFO(space.change(choice).words());
      CHECK(step_bound(trial->plan, c, *costs).seconds <= step * (1 + 1e-9));
      const Sizes key{choice.tp, choice.pp, choice.cp, choice.ep};
      const auto [at, added] = best.try_emplace({sizes ? key : Sizes{}, sizes ? 0 : i}, step, i);
      if (!added) at->second = std::min(at->second, {step, i});
    }
    std::vector<std::pair<double, size_t>> all;
    for (const auto& [key, value] : best) all.push_back(value);
    std::ranges::sort(all);
    if (all.size() > search.top) all.resize(search.top);
    const LayoutRanking found = search_layouts(p.source, p.recipe, p.plan, c, *costs, search);
    REQUIRE(found.ranked.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      CHECK(found.ranked[i].choice == space.choices()[all[i].second]);
      CHECK(found.ranked[i].step_s == all[i].first);
    }
    played += found.played;
  }
  CHECK(played < predicted);  // bounds left out some
}

TEST_CASE("a search ranks the layouts of a recipe, and counts the others by reason") {
  const plan::Cluster c = cluster();
  const SheetCosts costs(c, {});
  const Planned p = planned(4);
  LayoutSearch search;
  search.top = 3;
  const LayoutRanking r = search_layouts(p.source, p.recipe, p.plan, c, costs, search);
  REQUIRE(r.ranked.size() == 3);
  CHECK(std::ranges::is_sorted(r.ranked, {}, &RankedLayout::step_s));
  REQUIRE(r.own);
  CHECK(r.ranked[0].step_s <= r.own->step_s * 1.001);
  size_t counted = r.played;
  for (const LayoutsOut& out : r.out) counted += out.count;
  CHECK(counted == r.candidates);
  CHECK_FALSE(r.front.empty());
  for (size_t i = 1; i < r.front.size(); ++i) CHECK(r.front[i].memory < r.front[i - 1].memory);
}

TEST_CASE("fields that are not of a layout are mistakes") {
  Diagnostics diagnostics;
  SearchFields::parse("tp,pq", {"strategi=ddp", "tp=x", "distributed.pp_size=2"}, diagnostics);
  const std::string text = diagnostics.text(recipe::Severity::error);
  INFO(text);
  CHECK(text.find("`pq`") != std::string::npos);
  CHECK(text.find("did you mean strategy?") != std::string::npos);
  CHECK(text.find("`tp=x`") != std::string::npos);
}

}  // namespace predict_search_test
