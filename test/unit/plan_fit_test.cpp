// Tests the advice for plans that do not fit the device's memory, and trials of changed recipes.
#include <filesystem>

#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/cheap_recompute.h"
#include "plan/fit_search.h"
#include "recipe_cases.h"

namespace plan_fit_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

constexpr Machine kPlanned{.dry_run = true, .cores = 4};

RecipeSource small(int64_t world, const Overrides& set) {
  return {.models = &interchange::model_source(),
          .path = "base.yaml",
          .settings = set,
          .world = world,
          .machine = kPlanned,
          .text = kBase};
}

RecipeSource ready(const std::string& name, int64_t world, const Overrides& set = {}) {
  return {.models = &interchange::model_source(),
          .path = MTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml",
          .settings = set,
          .world = world,
          .machine = kPlanned};
}

Trial planned(const RecipeSource& source, const Change& change = {}) {
  auto trial = plan_trial(source, change, 512);
  // The vocabulary of ready recipes is in the recipe.
  if (trial && trial->recipe.model.vocab_size > 0)
    trial = plan_trial(source, change, trial->recipe.model.vocab_size);
  REQUIRE(trial);
  return *trial;
}

FitAdvice advice(const RecipeSource& source) {
  const Trial base = planned(source);
  REQUIRE_FALSE(memory_demand(base.recipe, base.plan).fits());
  return search_fit(source, base.recipe, base.plan);
}

// A user who pastes the advice gets a plan that fits, of the memory that the advice names.
void expect_fits_when_pasted(const RecipeSource& source, const FitAdvice& a) {
  INFO(hint_text(a));
  REQUIRE(a.fits);
  RecipeSource pasted = source;
  for (const std::string& setting : a.change.settings) pasted.settings.push_back(setting);
  if (a.change.world > 0) pasted.world = a.change.world;
  const Trial trial = planned(pasted);
  const MemoryDemand d = memory_demand(trial.recipe, trial.plan);
  CHECK(d.known());
  CHECK(d.fits());
  CHECK(d.bytes == a.demand.bytes);
  CHECK(trial.plan.layout.world == a.world);
}

// A GPU on which plans of at most so many bytes fit.
std::string memory_for(double bytes) {
  return fmt::format("hardware.memory_gb={:.9f}", bytes / kUsableMemory / 1e9 * 1.000001);
}

}  // namespace

TEST_CASE("a trial is the plan of the recipe with more settings, or nothing if a rule refuses it") {
  const RecipeSource source = small(8, {"distributed.strategy=fsdp2", "train.device=cuda"});
  const auto two = plan_trial(source, {.settings = {"distributed.tp_size=2"}}, 512);
  REQUIRE(two);
  CHECK(two->plan.layout.tp == 2);
  CHECK(two->plan.layout.dp == 4);
  CHECK(plan_trial(source, {.settings = {}, .world = 16}, 512)->plan.layout.dp == 16);
  CHECK_FALSE(plan_trial(source, {.settings = {"distributed.tp_size=3"}}, 512));
  CHECK_FALSE(plan_trial(source, {.settings = {"train.no_such_key=3"}}, 512));
  CHECK_FALSE(plan_trial(
      source, {.settings = {"model.tp_comm_overlap_cfg={qkv_fprop: {atomic_gemm: true}}"}}, 512));
  CHECK(source.settings.size() == 2);
}

TEST_CASE("a change is printed as words for a shell, each setting once") {
  Change change{.settings = {"a=1"}};
  change.add({.settings = {"a=1", "~b", "c=[1, 2]"}, .world = 4});
  CHECK(change.words() == "a=1 '~b' 'c=[1, 2]' --world-size 4");
}

TEST_CASE("the advice is the first change that fits, in the order of what it costs") {
  // A model whose tensors need more than NCCL.
  const Overrides large{"train.device=cuda", "model.num_layers=8", "model.hidden_size=4096",
                        "model.ffn_hidden_size=16384", "model.num_attention_heads=32"};
  const auto with = [](Overrides set, const Overrides& more) {
    set.insert(set.end(), more.begin(), more.end());
    return set;
  };
  const Overrides sharded = with(large, {"distributed.defer_fsdp_grad_sync=false",
                                         "distributed.reshard_after_forward=true",
                                         "train.micro_batch_size=4"}),
                  recomputed = with(sharded, {"recompute=full"}),
                  one_per_node = with(recomputed, {"hardware.gpus_per_node=1"}),
                  odd_length = with(one_per_node, {"dataset.seq_length=1022"}),
                  one_layer = with(odd_length, {"model.num_layers=1"});
  const std::vector<Change> in_order{
      {.settings = {"distributed.strategy=fsdp2"}},
      {.settings = {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"}},
      {.settings = {"recompute=selective"}},
      {.settings = {"recompute=full"}},
      {.settings = {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {.settings = {"distributed.tp_size=4", "distributed.sequence_parallel=true"}},
      {.settings = {"distributed.tp_size=8", "distributed.sequence_parallel=true"}},
      {.settings = {"distributed.cp_size=2"}},
      {.settings = {"distributed.cp_size=4"}},
      {.settings = {"distributed.cp_size=8"}},
      {.settings = {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
      {.settings = {"distributed.pp_size=4", "distributed.pipeline.pp_schedule=1f1b"}},
      {.settings = {"distributed.pp_size=8", "distributed.pipeline.pp_schedule=1f1b"}},
      {.settings = {"train.micro_batch_size=2"}},
      {.settings = {"train.micro_batch_size=1"}}};
  std::set<std::string> kinds;
  for (const Overrides& base : {with(large, {"distributed.strategy=megatron_ddp"}), sharded,
                                recomputed, one_per_node, odd_length, one_layer}) {
    for (const Change& limit : in_order) {
      const auto smaller = plan_trial(small(8, base), limit, 512);
      // The advice keeps tp within a node.
      if (!smaller || smaller->plan.layout.tp > smaller->recipe.hardware.gpus_per_node) continue;
      const RecipeSource source =
          small(8, with(base, {memory_for(smaller->plan.fullest().total())}));
      const Trial trial = planned(source);
      if (memory_demand(trial.recipe, trial.plan).fits()) continue;
      const FitAdvice a = search_fit(source, trial.recipe, trial.plan);
      expect_fits_when_pasted(source, a);
      // No earlier change of the list fits.
      for (const Change& change : in_order) {
        if (change.settings == a.change.settings) break;
        const auto earlier = plan_trial(source, change, 512);
        if (earlier && earlier->plan.layout.tp > earlier->recipe.hardware.gpus_per_node) continue;
        INFO(hint_text(a) << " instead of " << change.words());
        CHECK_FALSE((earlier && memory_demand(earlier->recipe, earlier->plan).fits()));
      }
      kinds.insert(a.change.settings.front().substr(0, a.change.settings.front().find('=')));
    }
  }
  for (const char* kind : {"distributed.strategy", "recompute", "distributed.tp_size",
                           "distributed.cp_size", "train.micro_batch_size"}) {
    CAPTURE(kind);
    CHECK(kinds.contains(kind));
  }
}

TEST_CASE("if no change suffices alone, the advice combines as few as possible") {
  const Overrides base{"train.device=cuda", "distributed.strategy=megatron_ddp",
                       "train.micro_batch_size=4"};
  double least = std::numeric_limits<double>::infinity();
  for (const Change& change : std::vector<Change>{
           {.settings = {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"}},
           {.settings = {"recompute=full"}},
           {.settings = {"distributed.tp_size=8", "distributed.sequence_parallel=true"}},
           {.settings = {"distributed.cp_size=8"}},
           {.settings = {"distributed.pp_size=8"}},
           {.settings = {"train.micro_batch_size=1"}}})
    least = std::min(least, planned(small(8, base), change).plan.fullest().total());
  Overrides set = base;
  set.push_back(memory_for(0.95 * least));
  const RecipeSource source = small(8, set);
  const FitAdvice a = advice(source);
  expect_fits_when_pasted(source, a);
  CHECK(a.change.settings.size() >= 2);
  // Without any of its settings the plan is refused or does not fit.
  for (size_t i = 0; i < a.change.settings.size(); ++i) {
    Change fewer = a.change;
    fewer.settings.erase(fewer.settings.begin() + int64_t(i));
    CAPTURE(fewer.words());
    const auto trial = plan_trial(source, fewer, 512);
    const bool fits = trial && memory_demand(trial->recipe, trial->plan).fits();
    // These two belong to tp and pp, which do without them in some recipes.
    if (a.change.settings[i] != "distributed.sequence_parallel=true" &&
        a.change.settings[i] != "distributed.pipeline.pp_schedule=1f1b")
      CHECK_FALSE(fits);
  }
}

TEST_CASE("advice for ready recipes on too few ranks fits when it is pasted") {
  struct Case {
    const char* recipe;
    int64_t world;
    Overrides set;
  };
  const Overrides one_rank_models{"distributed.tp_size=1",         "distributed.pp_size=1",
                                  "distributed.cp_size=1",         "~distributed.vpp_size",
                                  "~distributed.pipeline",         "~comm_overlap",
                                  "~distributed.sequence_parallel"};
  for (const Case& c : std::vector<Case>{{"llama3_70b", 64, one_rank_models},
                                         {"llama3_70b", 256, {"distributed.tp_size=1"}},
                                         {"llama3_8b", 0, {}},
                                         {"llama3_8b", 8, {}},
                                         {"qwen3_32b", 16, {}},
                                         {"qwen3_30b_a3b", 0, {}},
                                         {"qwen3_30b_a3b", 8, {"distributed.ep_size=1"}},
                                         {"mixtral_8x7b", 32, {"hardware.memory_gb=40"}},
                                         {"llama3_1_405b", 2048, {"distributed.pp_size=4"}}}) {
    CAPTURE(c.recipe, c.world);
    const RecipeSource source = ready(c.recipe, c.world, c.set);
    const Trial base = planned(source);
    if (memory_demand(base.recipe, base.plan).fits()) continue;
    const FitAdvice a = search_fit(source, base.recipe, base.plan);
    expect_fits_when_pasted(source, a);
    CHECK(a.trials < 260);
    CHECK_THAT(hint_text(a), Contains("add " + a.change.words()));
  }
}

TEST_CASE("if no layout fits, the advice says how much the smallest needs") {
  const RecipeSource source =
      ready("llama3_1_405b", 8,
            {"distributed.pp_size=1", "distributed.tp_size=1", "~distributed.vpp_size",
             "~distributed.pipeline", "~distributed.sequence_parallel"});
  const FitAdvice a = advice(source);
  CHECK_FALSE(a.fits);
  CHECK(a.world == 8);
  CHECK(a.trials < 260);
  CHECK_THAT(hint_text(a), Contains("no layout of 8 ranks fits") && Contains("the least is"));
  CHECK(planned(source, a.change).plan.fullest().total() == a.demand.bytes);
  // Weights and gradients in 6 bytes, and 12 of the optimizer, are the least that 8 ranks can
  // share.
  CHECK(a.demand.bytes > 18 * 405e9 / 8);
}

TEST_CASE("a text names the ranks that need most, and what they have") {
  const auto text = [](const RecipeSource& source) {
    const Trial trial = planned(source);
    return need_text(memory_demand(trial.recipe, trial.plan), trial.plan);
  };
  const std::string tiny = "hardware.memory_gb=0.01";
  CHECK_THAT(text(small(1, {"train.device=cuda", tiny})),
             Contains("the rank needs") && Contains("its device has 9.54 MiB"));
  CHECK_THAT(text(small(8, {"train.device=cuda", tiny})), Contains("each of the 8 ranks needs"));
  CHECK_THAT(text(small(8, pipeline({"train.device=cuda", tiny}))),
             Contains("each of the ranks 2 to 3 (pp rank 1) needs"));  // it has two neighbours
  CHECK_THAT(text(small(2, {"train.device=cpu"})),
             Contains("the 2 ranks of this host need") || Contains("needs 0 B"));
}

}  // namespace plan_fit_test
