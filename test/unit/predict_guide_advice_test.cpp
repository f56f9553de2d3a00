// Tests the predictions beside the sizing guide: each of its rows, on a cluster with a model that
// the row is for.
#include <map>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/plan_trial.h"
#include "predict/guide_advice.h"
#include "predict/sheet_costs.h"
#include "predict/step_model.h"

namespace predict_guide_advice_test {

using namespace mtrain;
using namespace mtrain::predict;
using Catch::Matchers::Contains;

namespace {

plan::Cluster cluster_of(const std::string& text) {
  Diagnostics diagnostics;
  plan::Cluster c = plan::read_cluster_text(text, "cluster.yaml", diagnostics);
  diagnostics.throw_if_errors();
  return c;
}

struct Advised {
  plan::Cluster cluster;
  plan::RecipeSource source;
  plan::Trial trial;
  GuideAdvice advice;
};

// What changes in a search: sizes, and what makes a layout fit.
constexpr const char* kFew = "tp,pp,cp,ep,schedule,micro_batch,recompute";

Advised advised(const std::string& recipe, int64_t world, const std::string& cluster,
                std::vector<std::string> settings = {}, const std::string& fields = kFew) {
  plan::Cluster c = cluster_of(cluster);
  for (const char* setting : {"train.device=cuda", "hardware.gpu=h100"})
    settings.emplace_back(setting);
  settings.push_back("hardware.gpus_per_node=" + std::to_string(c.domain_gpus));
  plan::RecipeSource source{.models = &interchange::model_source(),
                            .path = MTRAIN_SOURCE_DIR "/recipes/" + recipe + ".yaml",
                            .settings = std::move(settings),
                            .world = world,
                            .machine = {.dry_run = true, .cores = 4}};
  constexpr int64_t kVocabulary = 128256;  // of recipes that leave it to their tokenizer
  auto trial = plan::plan_trial(source, {}, kVocabulary);
  REQUIRE(trial);
  if (const int64_t own = trial->recipe.model.vocab_size; own > 0)
    trial = plan::plan_trial(source, {}, own);
  REQUIRE(trial);
  Diagnostics none;
  const LayoutSearch search{.fields = SearchFields::parse(fields, {}, none), .most_plays = 8};
  GuideAdvice advice =
      guide_advice(source, trial->recipe, trial->plan, c, SheetCosts(c, {}), search);
  return {std::move(c), std::move(source), std::move(*trial), std::move(advice)};
}

const RowAdvice& row_of(const GuideAdvice& advice, const std::string& condition) {
  for (const RowAdvice& row : advice.rows)
    if (row.row->condition == condition) return row;
  FAIL("no advice for " << condition);
  throw 0;
}

// Predicts a layout as `mtrain plan` does with the layout's settings.
void expect_full_prediction(const Advised& a, const RankedLayout& layout) {
  INFO(layout.change.words());
  const auto trial = plan::plan_trial(a.source, layout.change, a.trial.plan.model.vocab);
  REQUIRE(trial);
  CHECK(trial->plan.layout.tp == layout.choice.tp);
  CHECK(trial->plan.layout.pp == layout.choice.pp);
  CHECK(trial->plan.layout.cp == layout.choice.cp);
  CHECK(trial->plan.layout.ep == layout.choice.ep);
  const Prediction p = StepModel(trial->plan, a.cluster).price(SheetCosts(a.cluster, {}));
  CHECK(p.step_s == Approx(layout.step_s));
  CHECK(trial->plan.fullest().total() <= a.cluster.usable_bytes());
}

// Holds whatever a row says against full predictions of its two layouts.
void expect_consistent(const Advised& a, const RowAdvice& row) {
  INFO(guide_advice_text(a.advice, a.trial.plan, a.cluster, 80));
  for (const auto& [side, within] : {std::pair{&row.within, true}, {&row.outside, false}}) {
    if (!side->best) continue;
    CHECK(is_within(*row.row, side->best->choice, a.cluster.domain_gpus) == within);
    expect_full_prediction(a, *side->best);
  }
  if (row.within.best && row.outside.best)
    CHECK((row.verdict == GuideVerdict::agrees) ==
          (row.within.best->step_s <= row.outside.best->step_s * (1 + kNearTie)));
  else
    CHECK(row.verdict == (row.within.best    ? GuideVerdict::agrees
                          : row.outside.best ? GuideVerdict::disagrees
                                             : GuideVerdict::open));
}

constexpr const char* kDgx = "gpu: h100\nnodes: 8\n";

}  // namespace

TEST_CASE("each row of the guide has its word on a cluster") {
  struct Case {
    const char* condition;
    const char* recipe;
    int64_t world;
    GuideVerdict verdict;
    std::vector<std::string> settings;
    const char* fields = kFew;
  };
  constexpr auto kAgrees = GuideVerdict::agrees, kDisagrees = GuideVerdict::disagrees;
  const std::string small = "train.global_batch_size=64";
  std::set<std::string> tested;
  for (const Case& c :
       std::vector<Case>{{"dense, below 3B", "llama3_2_1b", 8, kAgrees, {small}},
                         {"dense, 3B to 13B", "llama3_8b", 8, kDisagrees, {small}},
                         {"dense, 13B to 70B", "qwen3_32b", 32, kDisagrees, {small}},
                         {"dense, 70B and more", "llama3_70b", 32, kDisagrees, {small}},
                         {"experts, below 10B",
                          "bench/gpu_moe",
                          8,
                          kDisagrees,
                          {small, "distributed.strategy=megatron_ddp"}},
                         {"experts, 10B to 30B", "moe_16b_shared_expert", 16, kAgrees, {small}},
                         {"experts, 100B and more",
                          "qwen3_30b_a3b",
                          64,
                          kAgrees,
                          {small, "model.moe.num_experts=512"},
                          "tp,pp,ep,schedule"},
                         {"sequences below 8192", "qwen3_4b", 8, kAgrees, {small}},
                         {"sequences of 8192 and more", "llama3_70b", 32, kAgrees, {small}},
                         {"all", "llama3_8b", 16, kAgrees, {small}}}) {
    CAPTURE(c.condition, c.recipe);
    const Advised a = advised(c.recipe, c.world, kDgx, c.settings, c.fields);
    const RowAdvice& row = row_of(a.advice, c.condition);
    expect_consistent(a, row);
    CHECK(row.verdict == c.verdict);
    REQUIRE(a.advice.best);
    CHECK(a.advice.best->choice.tp <= a.cluster.domain_gpus);
    CHECK(a.advice.rows.size() + a.advice.others.size() == plan::sizing_guide().size());
    tested.insert(c.condition);
  }
  CHECK(tested.size() == plan::sizing_guide().size());
}

TEST_CASE("tp across domains is compared, and never recommended") {
  // Domains of two devices: sizes above that are slower, also where the guide's range has no other.
  for (const int64_t domain : {2, 4, 8}) {
    CAPTURE(domain);
    const Advised a = advised(
        "llama3_8b", 16, "gpu: h100\nnodes: 8\ndomain: {gpus: " + std::to_string(domain) + "}\n",
        {"train.global_batch_size=64"});
    const RowAdvice& row = row_of(a.advice, "all");
    expect_consistent(a, row);
    CHECK(row.verdict == GuideVerdict::agrees);
    REQUIRE(row.outside.best);
    CHECK(row.outside.best->choice.tp == 2 * domain);
    CHECK(row.outside.best->step_s > row.within.best->step_s * (1 + kNearTie));
    REQUIRE(a.advice.best);
    CHECK(a.advice.best->choice.tp <= domain);
    for (const RowAdvice& other : a.advice.rows)
      if (&other != &row && other.within.best) CHECK(other.within.best->choice.tp <= domain);
  }
}

TEST_CASE("a range that no layout can have is said to have none, and why") {
  const Advised a = advised("llama3_70b", 32, "gpu: h100\nnodes: 8\ndomain: {gpus: 4}\n",
                            {"train.global_batch_size=64"});
  const RowAdvice& row = row_of(a.advice, "dense, 70B and more");
  CHECK_FALSE(row.within.best);
  expect_consistent(a, row);
  const std::string text = guide_advice_text(a.advice, a.trial.plan, a.cluster, 60);
  INFO(text);
  CHECK_THAT(text, Contains("no layout has such sizes"));
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    CHECK(end - at <= 60);
  }
}

}  // namespace predict_guide_advice_test
