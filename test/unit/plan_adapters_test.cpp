// Tests which linears get adapters by the names in the section peft, and what is refused.
#include <algorithm>

#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"
#include "recipe/adapters.h"
#include "recipe/model_spec.h"
#include "spec/tensors.h"

namespace plan_adapters_test {

using namespace mtrain;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kBase =
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 96}\n"
    "dataset: {train: unused, seq_length: 32}\n"
    "train: {steps: 2, global_batch_size: 2, run_dir: unused}\n";

struct Loaded {
  Recipe recipe;
  std::string errors, warnings;
};

Loaded load(const std::string& peft, std::vector<std::string> settings = {}) {
  Diagnostics diagnostics;
  Loaded l{.recipe = plan::load_recipe_text(interchange::model_source(), kBase + peft, "r.yaml",
                                            settings, diagnostics, 1),
           .errors = {},
           .warnings = {}};
  l.errors = diagnostics.text(recipe::Severity::error);
  l.warnings = diagnostics.text(recipe::Severity::warning);
  return l;
}

// Returns the names of the adapters of a layer, without "layers.N." and without A and B.
std::vector<std::string> adapters(const std::string& peft, int64_t layer = 0,
                                  const std::vector<std::string>& settings = {}) {
  const Loaded l = load(peft, settings);
  INFO(l.errors);
  REQUIRE(l.errors.empty());
  const RunPlan plan = plan::make_plan(l.recipe, 1, 61);
  std::vector<std::string> names;
  for (const spec::TensorSpec& t : spec::layer_tensors(plan.model, layer))
    if (t.name.ends_with(".a")) names.push_back(t.name.substr(9, t.name.size() - 11));
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("names of Hugging Face choose the weights that a linear stacks") {
  CHECK(adapters("peft: {target_modules: [q_proj, v_proj]}\n") ==
        Names{"attention.qkv.lora.query", "attention.qkv.lora.value"});
  CHECK(adapters("peft: {target_modules: ['*.o_proj', mlp.up_proj]}\n") ==
        Names{"attention.proj.lora", "mlp.gate_up.lora.up"});
  const Names all{"attention.qkv.lora.query",
                  "attention.qkv.lora.key",
                  "attention.qkv.lora.value",
                  "attention.proj.lora",
                  "mlp.gate_up.lora.gate",
                  "mlp.gate_up.lora.up",
                  "mlp.down.lora"};
  for (const char* peft :
       {"peft: {dim: 4}\n", "peft: {target_modules: ['*_proj']}\n",
        "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, match_all_linear: true, "
        "target_modules: [q_proj]}\n"})
    CHECK(adapters(peft) == all);
  CHECK(adapters("peft: {target_modules: ['model.layers.1.self_attn.*']}\n").empty());
  CHECK(adapters("peft: {target_modules: ['model.layers.1.self_attn.*']}\n", 1).size() == 4);
  CHECK(adapters("peft: {exclude_modules: ['*.mlp.*', k_proj, o_proj]}\n") ==
        Names{"attention.qkv.lora.query", "attention.qkv.lora.value"});
}

TEST_CASE("the linears of latent attention have the names of DeepSeek's folders and of Megatron") {
  const std::string on = "model.multi_latent_attention=true", ranks = "model.q_lora_rank=16";
  const auto of_attention = [](Names names) {
    std::erase_if(names, [](const std::string& name) { return name.starts_with("mlp."); });
    return names;
  };
  const Names with_latent{"attention.q_down.lora", "attention.q_up.lora", "attention.kv_down.lora",
                          "attention.kv_up.lora", "attention.proj.lora"},
      without{"attention.q.lora", "attention.kv_down.lora", "attention.kv_up.lora",
              "attention.proj.lora"};
  CHECK(of_attention(adapters("peft: {dim: 4}\n", 0, {on, ranks})) == with_latent);
  CHECK(of_attention(adapters("peft: {dim: 4}\n", 0, {on})) == without);
  CHECK(adapters("peft: {target_modules: [q_b_proj, kv_a_proj_with_mqa]}\n", 0, {on, ranks}) ==
        Names{"attention.q_up.lora", "attention.kv_down.lora"});
  CHECK(of_attention(adapters("peft: {target_modules: ['linear_*']}\n", 0, {on, ranks})) ==
        with_latent);
  CHECK(adapters("peft: {target_modules: [linear_q_proj, linear_kv_up_proj]}\n", 0, {on}) ==
        Names{"attention.q.lora", "attention.kv_up.lora"});
  CHECK_THAT(load("peft: {target_modules: [k_proj]}\n", {on}).errors,
             Contains("no linear of the layers is called k_proj"));
}

TEST_CASE("names of Bridge choose a linear as a whole") {
  CHECK(adapters("peft: {target_modules: [linear_qkv, linear_proj, linear_fc1, linear_fc2]}\n") ==
        Names{"attention.qkv.lora", "attention.proj.lora", "mlp.gate_up.lora", "mlp.down.lora"});
  for (const char* pattern : {"linear*", "linear_*", "'*fc2'"}) {
    const Names names = adapters(std::string("peft: {target_modules: [") + pattern + "]}\n");
    CHECK(std::ranges::count(names, "mlp.down.lora") == 1);
    CHECK(names.size() == (pattern[0] == 'l' ? 4 : 1));
  }
  CHECK(adapters("peft: {target_modules: ['*.self_attention.*']}\n") ==
        Names{"attention.qkv.lora", "attention.proj.lora"});
}

TEST_CASE("an exclusion holds for a linear and for the weights that it stacks, by either name") {
  const Names mlp{"mlp.gate_up.lora.gate", "mlp.gate_up.lora.up", "mlp.down.lora"};
  CHECK(adapters("peft: {match_all_linear: true, exclude_modules: [linear_qkv, o_proj]}\n") == mlp);
  CHECK(adapters("peft: {exclude_modules: [qkv_proj, linear_proj]}\n") == mlp);
  CHECK(adapters("peft: {target_modules: [q_proj, down_proj], exclude_modules: [linear_qkv]}\n") ==
        Names{"mlp.down.lora"});
  CHECK_THAT(load("peft: {target_modules: [linear_qkv], exclude_modules: [q_proj]}\n").errors,
             Contains("a part of linear_qkv is excluded"));
  const Loaded idle = load("peft: {exclude_modules: ['*lm_head*', '*vision*']}\n");
  CHECK(idle.errors.empty());
  CHECK_THAT(idle.warnings, Contains("*lm_head* or *vision*"));
}

TEST_CASE("a section peft asks for adapters of dimension 8, and a printed recipe for what it has") {
  CHECK(load("peft: {alpha: 16}\n").recipe.peft.dim == 8);
  CHECK(load("").recipe.peft.dim == 0);
  CHECK(load("peft: {dim: 0, alpha: 16}\n").recipe.peft.dim == 0);
}

TEST_CASE("a pattern of many * is matched or refused at once") {
  const std::string stars(60, '*');
  CHECK_THAT(load("peft: {target_modules: ['" + stars + ".x']}\n").errors,
             Contains("no linear of the layers is called"));
  CHECK(adapters("peft: {target_modules: ['" + stars + "q" + stars + "j']}\n") ==
        Names{"attention.qkv.lora.query"});
}

TEST_CASE("what adapters cannot go together with is refused by name") {
  CHECK_THAT(load("peft: {target_modules: [q_prj]}\n").errors,
             Contains("q_prj") && Contains("q_proj, k_proj"));
  CHECK_THAT(load("peft: {exclude_modules: ['*']}\n").errors,
             Contains("no linear gets an adapter"));
  CHECK_THAT(load("peft: {use_dora: true}\n").errors, Contains("DoRA"));
  CHECK_THAT(load("quantization: {load_in_4bit: true}\n").errors, Contains("quantized weights"));
  CHECK_THAT(load("peft: {dim: 4}\n", {"optimizer.name=muon"}).errors, Contains("Muon"));
}

TEST_CASE("families whose linears stack weights have one adapter for each of them") {
  const Names whole{"attention.qkv.lora", "attention.proj.lora", "mlp.gate_up.lora",
                    "mlp.down.lora"};
  const auto of = [](const std::string& peft) {
    const Loaded l = load(peft, {"model.architecture=phi3"});
    INFO(l.errors);
    REQUIRE(l.errors.empty());
    Names names;
    for (const spec::TensorSpec& t : spec::layer_tensors(plan::make_plan(l.recipe, 1, 61).model, 0))
      if (t.name.ends_with(".a")) names.push_back(t.name.substr(9, t.name.size() - 11));
    return names;
  };
  for (const char* peft : {"peft: {dim: 4}\n", "peft: {target_modules: '*_proj'}\n",
                           "peft: {match_all_linear: true}\n", "peft: {target_modules: ['*']}\n",
                           "peft: {target_modules: ['linear_*']}\n"})
    CHECK(of(peft) == whole);
  CHECK(of("peft: {target_modules: [q_proj]}\n") == Names{"attention.qkv.lora.query"});
}

TEST_CASE("experts get adapters only if a pattern matches their module, or names it") {
  const std::vector<std::string> moe{"model.moe.num_experts=4", "model.moe.router_topk=2",
                                     "model.moe.first_dense_layers=1",
                                     "model.moe.shared_expert_ffn_hidden_size=32"};
  const auto of = [&](const std::string& peft) {
    const Loaded l = load(peft, moe);
    INFO(l.errors);
    REQUIRE(l.errors.empty());
    Names names;
    for (const spec::TensorSpec& t : spec::layer_tensors(plan::make_plan(l.recipe, 1, 61).model, 1))
      if (t.name.ends_with(".a") && t.name.find("mlp") != std::string::npos)
        names.push_back(t.name.substr(13, t.name.size() - 15));
    return names;
  };
  const Names routed{"experts.gate_up.lora", "experts.down.lora"},
      shared{"shared_expert.gate_up.lora.gate", "shared_expert.gate_up.lora.up",
             "shared_expert.down.lora"};
  Names all = shared;
  all.insert(all.end(), routed.begin(), routed.end());
  CHECK(of("peft: {target_modules: [experts]}\n") == routed);
  CHECK(of("peft: {target_modules: ['*.mlp.experts.*']}\n") == routed);
  CHECK(of("peft: {target_modules: ['mlp.experts.down_proj']}\n") == Names{"experts.down.lora"});
  CHECK(of("peft: {target_modules: ['*']}\n") == all);
  CHECK(of("peft: {target_modules: ['*.mlp.*']}\n") == all);
  CHECK(of("peft: {target_modules: ['*'], exclude_modules: [experts]}\n") == shared);
  CHECK(of("peft: {target_modules: ['*_proj']}\n") == shared);
  CHECK(of("peft: {dim: 4}\n") == shared);
  CHECK(of("peft: {match_all_linear: true}\n") == shared);
  CHECK(of("peft: {target_modules: ['*.shared_expert.down_proj']}\n") ==
        Names{"shared_expert.down.lora"});
  CHECK(of("peft: {target_modules: [linear_fc2]}\n") ==
        Names{"shared_expert.down.lora", "experts.down.lora"});
  CHECK_THAT(load("peft: {target_modules: [w1]}\n", moe).errors, Contains("experts"));
}

TEST_CASE("moe_rank_scaling divides the rank of experts by the experts of a token") {
  const std::vector<std::string> moe{"model.moe.num_experts=4", "model.moe.router_topk=2"};
  const auto loaded = [&](const std::string& peft) { return load("peft: {" + peft + "}\n", moe); };
  const std::string on = ", target_modules: [experts], moe_rank_scaling: true";
  const auto rank = [&](const std::string& peft) {
    return plan::make_plan(loaded(peft).recipe, 1, 61).model.lora->expert_dim;
  };
  CHECK(rank("dim: 8" + on) == 4);
  CHECK(rank("dim: 8, target_modules: [experts]") == 8);
  CHECK_THAT(loaded("dim: 1" + on).errors, Contains("2 experts of a token"));
  CHECK(loaded("dim: 8" + on).warnings.empty());
  CHECK_THAT(loaded("dim: 5" + on).warnings, Contains("rounded down to the rank 2"));
  CHECK_THAT(loaded("dim: 8, moe_rank_scaling: true").warnings, Contains("no expert"));
  CHECK_THAT(loaded("dim: 8, dropout: 0.1, target_modules: [experts]").warnings,
             Contains("peft.dropout"));
}

TEST_CASE("a plan counts adapters as trained, and all else as frozen") {
  const RunPlan full = plan::make_plan(load("").recipe, 1, 61),
                lora = plan::make_plan(load("peft: {dim: 4, target_modules: [o_proj]}\n").recipe, 1,
                                       61);
  CHECK(lora.parameters.adapters == 2 * (4 * 64 + 64 * 4));
  CHECK(lora.parameters.total() == full.parameters.total() + lora.parameters.adapters);
  CHECK(lora.memory[0].grads == 4 * lora.parameters.adapters);
  for (const spec::TensorSpec& t : spec::parameters(lora.model))
    CHECK(t.frozen == (t.name.find(".lora.") == std::string::npos));
}

}  // namespace plan_adapters_test
