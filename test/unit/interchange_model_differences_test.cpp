// Two models are compared by what they compute, and their differences are settings of the recipe.
#include <string>
#include <vector>

#include <fmt/core.h>
#include <catch2/catch.hpp>

#include "interchange/model_differences.h"
#include "interchange/model_source.h"
#include "recipe/recipe.h"

namespace interchange_model_differences_test {

using namespace mtrain;

namespace {

// Returns a small model with further settings.
recipe::ModelConfig model_of(const std::string& settings) {
  Diagnostics diagnostics;
  const auto r = recipe::read_recipe_text(
      interchange::model_source(),
      "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 64, "
      "max_position_embeddings: 128" +
          (settings.empty() ? "" : ", " + settings) + "}\n",
      "r.yaml", {}, diagnostics);
  INFO(settings << "\n" << diagnostics.text(recipe::Severity::error));
  REQUIRE(r);
  REQUIRE_FALSE(diagnostics.has_errors());
  return r->model;
}

std::vector<std::string> differences(const std::string& a, const std::string& b) {
  std::vector<std::string> texts;
  for (const auto& d : interchange::model_differences(model_of(a), model_of(b)))
    texts.push_back(d.text());
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a setting that changes what a model computes is a difference, by its name and values") {
  CHECK(differences("attn_logit_softcapping: 50", "") ==
        Texts{"model.attn_logit_softcapping: 50, not none"});
  CHECK(differences("", "query_pre_attn_scalar: 4") ==
        Texts{"model.query_pre_attn_scalar: 8, not 4"});
  CHECK(differences("window_size: 16", "window_size: 16, window_attn_skip_freq: 2") ==
        Texts{"model.window_attn_skip_freq: [0], not [2]"});
  CHECK(differences("logits_scaling: 8, activation: geglu", "") ==
        Texts{"model.activation: geglu, not swiglu", "model.logits_scaling: 8, not 1"});
  CHECK(differences("attention_bias: true", "add_qkv_bias: true") ==
        Texts{"model.attention_bias: true, not false"});
  // One setting may decide others, which are then no further differences.
  CHECK(differences("rope_scaling: {type: yarn, factor: 4, beta_fast: 16}", "") ==
        Texts{"model.rope_scaling.type: yarn, not none"});
  CHECK(differences("moe: {num_experts: 4, ffn_hidden_size: 16, layer_freq: 2}", "") ==
        Texts{"model.moe.num_experts: 4, not 0"});
  CHECK(differences("moe: {num_experts: 4, router_score: sigmoid}", "moe: {num_experts: 4}") ==
        Texts{"model.moe.router_score: sigmoid, not softmax"});
}

TEST_CASE("factors of longrope differ for short samples as well as for long ones") {
  const auto longrope = [](const char* short_factor, const char* long_factor) {
    return fmt::format(
        "rope_scaling: {{type: longrope, short_factor: [1, 1, 1, {}], long_factor: [2, 4, 8, {}], "
        "original_max_position_embeddings: 32}}",
        short_factor, long_factor);
  };
  CHECK(differences(longrope("2", "9"), longrope("2", "9")).empty());
  CHECK(differences(longrope("2", "9"), longrope("3", "9")) ==
        Texts{"model.rope_scaling.short_factor: [1, 1, 1, 2], not [1, 1, 1, 3]"});
  CHECK(differences(longrope("2", "9"), longrope("2", "8")) ==
        Texts{"model.rope_scaling.long_factor: [2, 4, 8, 9], not [2, 4, 8, 8]"});
}

TEST_CASE("settings that describe the same model in another way are no difference") {
  struct Row {
    const char *a, *b;
  };
  for (const auto& [a, b] :
       {Row{"attention_bias: true, mlp_bias: true", "add_bias_linear: true"},
        Row{"query_pre_attn_scalar: 8", ""},
        Row{"attention_multiplier: 0.25", "query_pre_attn_scalar: 16"},
        Row{"window_size: 16, window_attn_skip_freq: 2",
            "window_size: 16, window_attn_skip_freq: [1, 0, 1, 0]"},
        Row{"window_attn_skip_freq: 2", ""},
        Row{"window_size: 16, rotary_base_local: 10000", "window_size: 16"},
        Row{"rope_scaling: {factor: 4}", ""}, Row{"no_rope_freq: 4", "no_rope_freq: [0, 0, 0, 1]"},
        Row{"moe: {num_experts: 4, layer_freq: [0, 1, 0, 1]}",
            "moe: {num_experts: 4, sparse_step: 2}"},
        Row{"moe: {num_experts: 4, layer_freq: [0, 1, 1, 1]}",
            "moe: {num_experts: 4, first_dense_layers: 1}"},
        Row{"moe: {num_experts: 4, router_pre_softmax: true, norm_topk_prob: true}",
            "moe: {num_experts: 4}"},
        Row{"moe: {num_experts: 4, num_groups: 1, group_topk: 1}", "moe: {num_experts: 4}"}}) {
    CAPTURE(a, b);
    CHECK(differences(a, b).empty());
    CHECK(differences(b, a).empty());
  }
}

TEST_CASE("settings of training alone are no difference between models") {
  CHECK(differences("hidden_dropout: 0.1, embedding_dropout: 0.1, init_method_std: 1", "").empty());
  CHECK(differences("moe: {num_experts: 4, router_dtype: bf16, z_loss_coeff: 0.1, "
                    "load_balancing_type: aux_loss, aux_loss_coeff: 0.1, "
                    "expert_capacity_factor: 1.5, token_drop_policy: position}",
                    "moe: {num_experts: 4}")
            .empty());
  // A rate at which biases change gives the router biases.
  CHECK(differences("moe: {num_experts: 4, router_bias_update_rate: 0.001}",
                    "moe: {num_experts: 4}") ==
        Texts{"model.moe.router_bias_update_rate: 0.001, not 0"});
}

}  // namespace interchange_model_differences_test
