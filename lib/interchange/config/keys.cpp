#include "interchange/config/keys.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace mtrain::interchange {

namespace {

// The field that a key of config.json sets in each family that has the key and names no field for
// it. Keys of a single family may be absent here if the family names their fields.
struct KeyField {
  std::string_view key, field;
  bool recipe_wins = false;
  std::string_view other_name = {};
};
constexpr KeyField kKeyFields[] = {
    {.key = "hidden_size", .field = "model.hidden_size"},
    {.key = "intermediate_size", .field = "model.ffn_hidden_size"},
    {.key = "num_hidden_layers", .field = "model.num_layers"},
    {.key = "num_attention_heads", .field = "model.num_attention_heads"},
    {.key = "num_key_value_heads", .field = "model.num_query_groups"},
    {.key = "head_dim", .field = "model.kv_channels"},
    {.key = "vocab_size", .field = "model.vocab_size"},
    {.key = "max_position_embeddings", .field = "model.max_position_embeddings"},
    {.key = "rms_norm_eps", .field = "model.norm_epsilon"},
    {.key = "rope_theta", .field = "model.rotary_base"},
    {.key = "partial_rotary_factor", .field = "model.rotary_percent"},
    {.key = "hidden_act", .field = "model.activation"},
    {.key = "hidden_activation", .field = "model.activation"},
    {.key = "attention_bias", .field = "model.attention_bias"},
    {.key = "mlp_bias", .field = "model.mlp_bias"},
    {.key = "qkv_bias", .field = "model.add_qkv_bias"},
    {.key = "sliding_window", .field = "model.window_size"},
    {.key = "sliding_window_pattern", .field = ""},
    {.key = "sliding_window_size", .field = ""},
    {.key = "pretraining_tp", .field = ""},
    {.key = "no_rope_layers", .field = ""},
    {.key = "no_rope_layer_interval", .field = ""},
    {.key = "rope_local_base_freq", .field = "model.rotary_base_local"},
    {.key = "query_pre_attn_scalar", .field = "model.query_pre_attn_scalar"},
    {.key = "attn_logit_softcapping", .field = "model.attn_logit_softcapping"},
    {.key = "final_logit_softcapping", .field = "model.final_logit_softcapping"},
    {.key = "tie_word_embeddings", .field = "model.share_embeddings_and_output_weights"},
    {.key = "num_local_experts", .field = "model.moe.num_experts"},
    // Some versions of transformers write Qwen3-MoE's number of experts under Mixtral's key.
    {.key = "num_experts", .field = "model.moe.num_experts", .other_name = "num_local_experts"},
    {.key = "num_experts_per_tok", .field = "model.moe.router_topk"},
    {.key = "moe_intermediate_size", .field = "model.moe.ffn_hidden_size"},
    {.key = "shared_expert_intermediate_size", .field = "model.moe.shared_expert_ffn_hidden_size"},
    {.key = "norm_topk_prob", .field = "model.moe.norm_topk_prob"},
    {.key = "decoder_sparse_step", .field = "model.moe.sparse_step"},
    {.key = "mlp_only_layers", .field = "model.moe.dense_layers"},
    {.key = "n_routed_experts", .field = "model.moe.num_experts"},
    {.key = "n_shared_experts", .field = "model.moe.num_shared_experts"},
    {.key = "first_k_dense_replace", .field = "model.moe.first_dense_layers"},
    {.key = "n_group", .field = "model.moe.num_groups"},
    {.key = "topk_group", .field = "model.moe.group_topk"},
    {.key = "routed_scaling_factor", .field = "model.moe.router_topk_scaling_factor"},
    {.key = "q_lora_rank", .field = "model.q_lora_rank"},
    {.key = "kv_lora_rank", .field = "model.kv_lora_rank"},
    {.key = "qk_nope_head_dim", .field = "model.qk_nope_head_dim"},
    {.key = "qk_rope_head_dim", .field = "model.qk_rope_head_dim"},
    {.key = "v_head_dim", .field = "model.v_head_dim"},
    {.key = "use_qk_norm", .field = "model.qk_layernorm"},
    {.key = "initializer_range", .field = "model.init_method_std", .recipe_wins = true},
    {.key = "attention_dropout", .field = "model.attention_dropout", .recipe_wins = true},
    {.key = "resid_pdrop", .field = "model.hidden_dropout", .recipe_wins = true},
    {.key = "embd_pdrop", .field = "model.embedding_dropout", .recipe_wins = true},
    {.key = "n_embd", .field = "model.hidden_size"},
    {.key = "n_inner", .field = "model.ffn_hidden_size"},
    {.key = "n_layer", .field = "model.num_layers"},
    {.key = "n_head", .field = "model.num_attention_heads"},
    {.key = "n_positions", .field = "model.max_position_embeddings"},
    {.key = "layer_norm_epsilon", .field = "model.norm_epsilon"},
    {.key = "activation_function", .field = "model.activation"},
    {.key = "attn_pdrop", .field = "model.attention_dropout", .recipe_wins = true}};

}  // namespace

std::vector<ConfigKey> config_keys(const Family& family) {
  std::vector<ConfigKey> keys;
  for (const auto& [key, omitted, field, recipe_wins] : family.keys) {
    const auto* row = std::ranges::find(kKeyFields, key, &KeyField::key);
    const bool known = row != std::end(kKeyFields);
    MT_CHECK(known || !field.empty(), "no field for the key {} of {}", key, family.model_type);
    ConfigKey own{.key = key, .field = field, .omitted = omitted, .recipe_wins = recipe_wins};
    if (known && field.empty()) own.field = row->field;
    if (known) own.recipe_wins = row->recipe_wins, own.other_name = row->other_name;
    keys.push_back(own);
  }
  return keys;
}

std::vector<std::string_view> model_types() {
  std::vector<std::string_view> types;
  for (const Family& family : families())
    if (!family.keys.empty()) types.push_back(family.model_type);
  return types;
}

}  // namespace mtrain::interchange
