// Tests the sizing guide, its advice, and the cost of recomputation.
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/device_text.h"
#include "plan/recompute_cost.h"
#include "plan/sizing_guide.h"
#include "recipe_cases.h"

namespace plan_sizing_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

constexpr Machine kPlanned{.dry_run = true, .cores = 4};

RecipeSource ready(const std::string& name, int64_t world, const Overrides& set = {}) {
  return {.models = &interchange::model_source(),
          .path = MTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml",
          .settings = set,
          .world = world,
          .machine = kPlanned};
}

Trial planned(const RecipeSource& source) {
  auto trial = plan_trial(source, {}, 512);
  REQUIRE(trial);
  trial = plan_trial(source, {}, std::max<int64_t>(512, trial->recipe.model.vocab_size));
  REQUIRE(trial);
  return *trial;
}

std::vector<std::string> advice(const RecipeSource& source) {
  const Trial trial = planned(source);
  return sizing_advice(source, trial.recipe, trial.plan);
}

// The number in "# world size: 64"; 1 if there is none.
int64_t named_world(const std::string& text) {
  const std::string words = "world size: ";
  const size_t at = text.find(words);
  return at == text.npos ? 1 : std::stoll(text.substr(at + words.size()));
}

// The overrides of an advice: the words between "; " and " plans ".
Overrides overrides_of(const std::string& line) {
  const size_t begin = line.rfind("; ") + 2;
  Overrides out;
  std::istringstream words(line.substr(begin, line.find(" plans ") - begin));
  for (std::string word; words >> word;) {
    std::erase(word, '\'');
    out.push_back(word);
  }
  return out;
}

}  // namespace

TEST_CASE("ready recipes fit their GPUs, and the guide has no advice for them") {
  for (const auto& entry : std::filesystem::directory_iterator(MTRAIN_SOURCE_DIR "/recipes")) {
    const std::string name = entry.path().stem().string();
    // These two continue a model that is not in the tree.
    if (entry.path().extension() != ".yaml" || name == "sft" || name == "sft_lora" ||
        name == "continue")
      continue;
    CAPTURE(name);
    const int64_t world = named_world(read_file(entry.path().string()));
    const RecipeSource source = ready(name, world);
    const Trial trial = planned(source);
    CHECK(sizing_advice(source, trial.recipe, trial.plan) == std::vector<std::string>());
    if (trial.plan.device.kind == DeviceKind::cuda)
      CHECK(memory_demand(trial.recipe, trial.plan).fits());
  }
}

TEST_CASE(
    "the guide speaks where a recipe departs from it, and its override plans a layout that fits") {
  struct Case {
    const char* recipe;
    int64_t world;
    Overrides set;
    const char *condition, *sizes;
  };
  for (const Case& c : std::vector<Case>{
           {"qwen3_1_7b",
            8,
            {"distributed.tp_size=8", "distributed.sequence_parallel=true"},
            "dense, below 3B",
            "tp 1 is usual, not tp 8"},
           {"llama3_8b",
            64,
            {"distributed.tp_size=8", "distributed.sequence_parallel=true"},
            "dense, 3B to 13B",
            "tp 2 to 4 is usual, not tp 8"},
           {"llama3_8b",
            64,
            {"distributed.pp_size=8", "distributed.pipeline.pp_schedule=1f1b",
             "train.global_batch_size=128"},
            "dense, 3B to 13B",
            "pp 1 is usual, not pp 8"},
           {"qwen3_14b",
            64,
            {"~distributed.defer_fsdp_grad_sync"},
            "dense, 13B to 70B",
            "tp 4 to 8, pp 2 to 4 is usual, not tp 1, pp 1"},
           {"moe_16b_shared_expert",
            32,
            {"distributed.ep_size=1", "~comm_overlap"},
            "experts, 10B to 30B",
            "ep 8 is usual, not ep 1"},
           {"qwen3_4b",
            16,
            {"distributed.cp_size=2"},
            "sequences below 8192",
            "cp 1 is usual, not cp 2"},
           {"qwen3_4b",
            16,
            {"dataset.seq_length=32768", "train.global_batch_size=64", "recompute=selective"},
            "sequences of 8192 and more",
            "cp 2 to 8 is usual, not cp 1"}}) {
    CAPTURE(c.condition, c.sizes);
    const RecipeSource source = ready(c.recipe, c.world, c.set);
    bool spoke = false;
    for (const std::string& line : advice(source)) {
      INFO(line);
      if (!line.starts_with(std::string(c.condition) + ": ")) continue;
      spoke = true;
      CHECK_THAT(line, Contains(c.sizes));
      RecipeSource pasted = source;
      for (const std::string& setting : overrides_of(line)) pasted.settings.push_back(setting);
      const Trial trial = planned(pasted);
      const MemoryDemand d = memory_demand(trial.recipe, trial.plan);
      CHECK(d.known());
      CHECK(d.fits());
      for (const std::string& left : advice(pasted))
        CHECK_FALSE(left.starts_with(std::string(c.condition) + ": "));
    }
    CHECK(spoke);
  }
}

TEST_CASE("the guide is silent where its sizes would not help") {
  // A pipeline that hardly idles, a layout that the smaller sizes do not fit, a size that tp cannot
  // have, a model that only tries a layout out, and CPUs.
  for (const auto& source :
       {ready("llama3_8b", 64,
              {"distributed.strategy=megatron_ddp", "distributed.pp_size=4",
               "distributed.vpp_size=4", "distributed.pipeline.pp_schedule=interleaved_1f1b"}),
        ready("llama3_1_405b", 16384), ready("quickstart_long", 4),
        ready("quickstart", 8, {"distributed.strategy=fsdp2", "distributed.tp_size=4"}),
        ready("gpt2_124m", 2, {"distributed.tp_size=2", "train.device=cpu"})})
    CHECK(advice(source) == std::vector<std::string>());
}

TEST_CASE("the documentation has the guide's table") {
  const std::string page = read_file(MTRAIN_SOURCE_DIR "/docs/parallelism.md");
  INFO(sizing_guide_table());
  CHECK(page.find(sizing_guide_table()) != std::string::npos);
}

TEST_CASE("a model of any size and length has at most one row of each kind") {
  for (const GuideRow& row : sizing_guide()) {
    CAPTURE(row.condition);
    CHECK(row.from < row.below);
    CHECK(row.length_from < row.length_below);
    for (const SizeRange& range : {row.tp, row.pp, row.cp, row.ep}) CHECK(range.low <= range.high);
    for (const GuideRow& other : sizing_guide()) {
      const bool apart = &other == &row || other.models != row.models ||
                         row.models == GuideRow::Models::all || other.below <= row.from ||
                         row.below <= other.from;
      CHECK(apart);
    }
  }
}

TEST_CASE("recomputation costs the FLOPs of what backward runs again") {
  const auto share = [](const std::string& recipe, int64_t world, const Overrides& set) {
    return recomputed_share(planned(ready(recipe, world, set)).plan);
  };
  const RunPlan plan = planned(ready("llama3_8b", 64)).plan;
  const double S = double(plan.sample_length), all = plan.token_cost.flops(plan.sample_length),
               attention = plan.token_cost.attention_flops_per_position * S,
               head = 6 * plan.parameters.output;
  CHECK(share("llama3_8b", 64, {"recompute=none"}) == 0);
  // A third of the layers' FLOPs, which are all but those of the output layer and its norm.
  CHECK(share("llama3_8b", 64, {"recompute=full"}) == Approx((all - head) / 3 / all).epsilon(1e-4));
  CHECK(share("llama3_8b", 64,
              {"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=8"}) ==
        Approx((all - head) / 3 / all / 4).epsilon(1e-4));
  // The scores and the weighted sums of a third of attention's FLOPs.
  CHECK(share("llama3_8b", 64, {"recompute=selective"}) == Approx(attention / 3 / all));
  // Two of the three matrices of an MLP, forward alone.
  const double mlp = 32 * 2.0 * 2 * 4096 * 14336;
  CHECK(share("llama3_8b", 64, {"recompute=selective", "recompute.modules=[mlp]"}) ==
        Approx(mlp / all));
  // Each stage of a pipeline recomputes its first layers.
  CHECK(share("llama3_8b", 64,
              {"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=2",
               "distributed.pp_size=4", "distributed.pipeline.pp_schedule=1f1b"}) ==
        Approx((all - head) / 3 / all / 4).epsilon(1e-4));
  // Two further tokens need two more layers and outputs, whether one layer predicts both or two do.
  for (const char* repeated : {"false", "true"}) {
    const Overrides further{"model.mtp_num_layers=2",
                            fmt::format("model.mtp_use_repeated_layer={}", repeated)};
    const RunPlan predicting = planned(ready("llama3_8b", 64, further)).plan;
    const double flops = predicting.token_cost.flops(predicting.sample_length);
    CAPTURE(repeated);
    CHECK(share("llama3_8b", 64, {further[0], further[1], "recompute=full"}) ==
          Approx((flops - 3 * head) / 3 / flops).epsilon(1e-4));
    CHECK(share("llama3_8b", 64, {further[0], further[1], "recompute=selective"}) ==
          Approx(attention / 3 * 34 / 32 / flops));
  }
  // A window limits what attention computes.
  const RunPlan gemma = planned(ready("gemma3_1b", 8)).plan;
  const TokenCost& cost = gemma.token_cost;
  CHECK(cost.window_flops_per_position > 0);
  CHECK(cost.window < gemma.sample_length);
  CHECK(share("gemma3_1b", 8, {"recompute=selective"}) ==
        Approx((cost.attention_flops_per_position * double(gemma.sample_length) +
                cost.window_flops_per_position * double(cost.window)) /
               3 / cost.flops(gemma.sample_length)));
  // Experts count by the number that a token chooses.
  const RunPlan moe = planned(ready("moe_16b_shared_expert", 32)).plan;
  const double total = moe.token_cost.flops(moe.sample_length);
  CHECK(share("moe_16b_shared_expert", 32,
              {"recompute=selective", "recompute.modules=[moe]", "~comm_overlap"}) ==
        Approx(27 * 6 * 2.0 * 2 * 2048 * 1408 / total));
  CHECK(share("moe_16b_shared_expert", 32,
              {"recompute=selective", "recompute.modules=[shared_experts]"}) ==
        Approx(27 * 2.0 * 2 * 2048 * 2816 / total));
  CHECK(share("moe_16b_shared_expert", 32,
              {"recompute=selective", "recompute.modules=[moe_act]"}) == 0);
}

TEST_CASE(
    "multi-token prediction counts its layers, and the output layer once more for each depth") {
  const auto plan_of = [](const Overrides& set) {
    return planned(ready("llama3_8b", 64, set)).plan;
  };
  const RunPlan without = plan_of({}), two = plan_of({"model.mtp_num_layers=2"}),
                again = plan_of({"model.mtp_num_layers=2", "model.mtp_use_repeated_layer=true"});
  const double H = 4096, output = without.parameters.output,
               layer = without.parameters.dense.total(), further = 2 * H * H + 3 * H;
  CHECK(two.parameters.total() - without.parameters.total() == Approx(2 * (layer + further)));
  CHECK(again.parameters.total() - without.parameters.total() == Approx(layer + further));
  const double flops = 2 * 6 * (layer + further + output);
  CHECK(two.token_cost.matmul_flops - without.token_cost.matmul_flops == Approx(flops));
  CHECK(again.token_cost.matmul_flops == Approx(two.token_cost.matmul_flops));
  CHECK(two.token_cost.attention_flops_per_position ==
        Approx(without.token_cost.attention_flops_per_position * 34 / 32));
  CHECK(again.token_cost.attention_flops_per_position ==
        Approx(two.token_cost.attention_flops_per_position));
}

TEST_CASE("the row of recomputation has its cost") {
  const auto text = [](const Overrides& set) {
    return planned(ready("llama3_8b", 64, set)).plan.text.recompute;
  };
  CHECK_THAT(text({"recompute=full"}), Contains("full, groups of 1, +3") && Contains("% FLOPs"));
  CHECK_THAT(text({"recompute=selective"}), Contains("selective: core_attn, +"));
  CHECK_THAT(text({"recompute=none"}), !Contains("FLOPs"));
}

}  // namespace plan_sizing_test
