#include "recipe/load/hf_keys.h"

#include <algorithm>
#include <iterator>

namespace mtrain::recipe {

namespace {

// The families whose keys are Llama's, and what each of them takes if a key is left out.
constexpr std::string_view kLikeLlama[] = {"llama", "mistral", "phi3",      "qwen2",
                                           "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"};
constexpr std::string_view kNoKey = "-";  // the family has no such key
struct SharedKey {
  std::string_view key, field;
  std::string_view omitted[std::size(kLikeLlama)];
  bool recipe_wins = false;
};
constexpr SharedKey kShared[] = {
    {"hidden_size",
     "model.hidden_size",
     {"4096", "4096", "3072", "4096", "4096", "4096", "2048", "2048"}},
    {"intermediate_size",
     "model.ffn_hidden_size",
     {"11008", "14336", "8192", "22016", "22016", "14336", "5632", "6144"}},
    {"num_hidden_layers", "model.num_layers", {"32", "32", "32", "32", "32", "32", "24", "24"}},
    {"num_attention_heads",
     "model.num_attention_heads",
     {"32", "32", "32", "32", "32", "32", "16", "32"}},
    {"num_key_value_heads", "model.num_query_groups", {"", "8", "", "32", "32", "8", "16", "4"}},
    {"head_dim", "model.kv_channels", {"", "", "", "", "128", "", "", ""}},
    {"vocab_size",
     "model.vocab_size",
     {"32000", "32000", "32064", "151936", "151936", "32000", "151936", "151936"}},
    {"max_position_embeddings",
     "model.max_position_embeddings",
     {"2048", "131072", "4096", "32768", "32768", "131072", "32768", "32768"}},
    {"rms_norm_eps",
     "model.norm_epsilon",
     {"1.0e-6", "1.0e-6", "1.0e-5", "1.0e-6", "1.0e-6", "1.0e-5", "1.0e-6", "1.0e-6"}},
    {"rope_theta",
     "model.rotary_base",
     {"10000", "10000", "10000", "10000", "10000", "1000000", "10000", "10000"}},
    {"partial_rotary_factor",
     "model.rotary_percent",
     {kNoKey, kNoKey, "1.0", kNoKey, kNoKey, kNoKey, kNoKey, kNoKey}},
    {"hidden_act",
     "model.activation",
     {"silu", "silu", "silu", "silu", "silu", "silu", "silu", "silu"}},
    {"attention_bias",
     "model.attention_bias",
     {"false", kNoKey, kNoKey, kNoKey, "false", kNoKey, kNoKey, "false"}},
    {"mlp_bias",
     "model.mlp_bias",
     {"false", kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey}},
    {"qkv_bias",
     "model.add_qkv_bias",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "true", kNoKey}},
    {"sliding_window",
     "model.window_size",
     {kNoKey, "4096", "", kNoKey, kNoKey, "", kNoKey, kNoKey}},
    {"tie_word_embeddings",
     "model.share_embeddings_and_output_weights",
     {"false", "false", "false", "false", "false", "false", "false", "false"}},
    {"num_local_experts",
     "model.moe.num_experts",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "8", kNoKey, kNoKey}},
    {"num_experts",
     "model.moe.num_experts",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "60", "128"}},
    {"num_experts_per_tok",
     "model.moe.router_topk",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "2", "4", "8"}},
    {"moe_intermediate_size",
     "model.moe.ffn_hidden_size",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "1408", "768"}},
    {"shared_expert_intermediate_size",
     "model.moe.shared_expert_ffn_hidden_size",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "5632", kNoKey}},
    {"norm_topk_prob",
     "model.moe.norm_topk_prob",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "false", "false"}},
    {"decoder_sparse_step",
     "model.moe.sparse_step",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "1", "1"}},
    {"mlp_only_layers",
     "model.moe.dense_layers",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "", ""}},
    {"initializer_range",
     "model.init_method_std",
     {"0.02", "0.02", "0.02", "0.02", "0.02", "0.02", "0.02", "0.02"},
     true},
    {"attention_dropout",
     "model.attention_dropout",
     {"0.0", "0.0", "0.0", "0.0", "0.0", "0.0", "0.0", "0.0"},
     true},
    {"resid_pdrop",
     "model.hidden_dropout",
     {kNoKey, kNoKey, "0.0", kNoKey, kNoKey, kNoKey, kNoKey, kNoKey},
     true},
    {"embd_pdrop",
     "model.embedding_dropout",
     {kNoKey, kNoKey, "0.0", kNoKey, kNoKey, kNoKey, kNoKey, kNoKey},
     true}};

constexpr HfKey kGpt2[] = {
    {"n_embd", "model.hidden_size", "768"},
    {"n_inner", "model.ffn_hidden_size", ""},
    {"n_layer", "model.num_layers", "12"},
    {"n_head", "model.num_attention_heads", "12"},
    {"vocab_size", "model.vocab_size", "50257"},
    {"n_positions", "model.max_position_embeddings", "1024"},
    {"layer_norm_epsilon", "model.norm_epsilon", "1.0e-5"},
    {"activation_function", "model.activation", "gelu_new"},
    {"tie_word_embeddings", "model.share_embeddings_and_output_weights", "true"},
    {"initializer_range", "model.init_method_std", "0.02", true},
    {"resid_pdrop", "model.hidden_dropout", "0.1", true},
    {"embd_pdrop", "model.embedding_dropout", "0.1", true},
    {"attn_pdrop", "model.attention_dropout", "0.1", true}};

// Some versions of transformers write the number of Qwen3-MoE's experts under Mixtral's name.
constexpr std::string_view kOtherNames[][2] = {{"num_experts", "num_local_experts"}};

}  // namespace

std::vector<HfKey> hf_keys(std::string_view model_type) {
  std::vector<HfKey> keys;
  if (model_type == "gpt2") keys.assign(std::begin(kGpt2), std::end(kGpt2));
  const auto* family = std::ranges::find(kLikeLlama, model_type);
  if (family == std::end(kLikeLlama)) return keys;
  const auto column = size_t(family - std::begin(kLikeLlama));
  for (const SharedKey& row : kShared) {
    if (row.omitted[column] == kNoKey) continue;
    keys.push_back({row.key, row.field, row.omitted[column], row.recipe_wins});
    for (const auto& [key, other] : kOtherNames)
      if (row.key == key) keys.back().other_name = other;
  }
  return keys;
}

const std::vector<std::string_view>& hf_model_types() {
  static const std::vector<std::string_view> types = [] {
    std::vector<std::string_view> all(std::begin(kLikeLlama), std::end(kLikeLlama));
    all.emplace_back("gpt2");
    return all;
  }();
  return types;
}

HfWindow hf_window(std::string_view model_type) {
  if (model_type == "qwen2" || model_type == "qwen3") return HfWindow::from_layer;
  if (model_type == "qwen2_moe") return HfWindow::alternating;
  if (model_type == "qwen3_moe") return HfWindow::switched;
  return model_type == "llama" || model_type == "gpt2" ? HfWindow::none : HfWindow::every_layer;
}

HfRope hf_rope(std::string_view model_type) {
  return model_type == "phi3" ? HfRope::phi3 : HfRope::any;
}

}  // namespace mtrain::recipe
