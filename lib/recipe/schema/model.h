// model: the shape of the network.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/norm_kind.h"
#include "base/router_form.h"
#include "base/token_dispatch.h"
#include "recipe/schema/element_type.h"
#include "recipe/schema/field.h"
#include "recipe/schema/rope.h"
#include "spec/activation.h"

namespace mtrain::recipe {

// The last nine are families of mixture-of-experts models.
enum class Architecture {
  llama,
  gpt2,
  qwen2,
  qwen3,
  mistral,
  phi3,
  smollm3,
  olmo2,
  gemma2,
  gemma3_text,
  seed_oss,
  granite,
  mixtral,
  qwen2_moe,
  qwen3_moe,
  deepseek_moe,
  dots1,
  glm4_moe,
  deepseek_v2,
  deepseek_v3,
  glm4_moe_lite
};
constexpr auto enum_names(Architecture) {
  return std::array{EnumName{Architecture::llama, "llama"},
                    EnumName{Architecture::gpt2, "gpt2"},
                    EnumName{Architecture::qwen2, "qwen2"},
                    EnumName{Architecture::qwen3, "qwen3"},
                    EnumName{Architecture::mistral, "mistral"},
                    EnumName{Architecture::phi3, "phi3"},
                    EnumName{Architecture::smollm3, "smollm3"},
                    EnumName{Architecture::olmo2, "olmo2"},
                    EnumName{Architecture::gemma2, "gemma2"},
                    EnumName{Architecture::gemma3_text, "gemma3_text"},
                    EnumName{Architecture::seed_oss, "seed_oss"},
                    EnumName{Architecture::granite, "granite"},
                    EnumName{Architecture::mixtral, "mixtral"},
                    EnumName{Architecture::qwen2_moe, "qwen2_moe"},
                    EnumName{Architecture::qwen3_moe, "qwen3_moe"},
                    EnumName{Architecture::deepseek_moe, "deepseek_moe"},
                    EnumName{Architecture::dots1, "dots1"},
                    EnumName{Architecture::glm4_moe, "glm4_moe"},
                    EnumName{Architecture::deepseek_v2, "deepseek_v2"},
                    EnumName{Architecture::deepseek_v3, "deepseek_v3"},
                    EnumName{Architecture::glm4_moe_lite, "glm4_moe_lite"}};
}

// A layer has norms on the inputs of attention and MLP (pre), on their outputs before the residual
// addition (post, OLMo 2), or on both (sandwich, Gemma 2).
enum class NormPlacement { pre, post, sandwich };
constexpr auto enum_names(NormPlacement) {
  return std::array{EnumName{NormPlacement::pre, "pre"}, EnumName{NormPlacement::post, "post"},
                    EnumName{NormPlacement::sandwich, "sandwich"}};
}

enum class PositionEmbedding { rope, learned };
constexpr auto enum_names(PositionEmbedding) {
  return std::array{EnumName{PositionEmbedding::rope, "rope"},
                    EnumName{PositionEmbedding::learned, "learned"},
                    EnumName{PositionEmbedding::learned, "learned_absolute"}};
}

using spec::Activation;

enum class LoadBalancing { none, aux_loss, seq_aux_loss, global_aux_loss };
constexpr auto enum_names(LoadBalancing) {
  return std::array{EnumName{LoadBalancing::none, "none"},
                    EnumName{LoadBalancing::aux_loss, "aux_loss"},
                    EnumName{LoadBalancing::seq_aux_loss, "seq_aux_loss"},
                    EnumName{LoadBalancing::global_aux_loss, "global_aux_loss"}};
}

enum class TokenDropPolicy { probs, position };
constexpr auto enum_names(TokenDropPolicy) {
  return std::array{EnumName{TokenDropPolicy::probs, "probs"},
                    EnumName{TokenDropPolicy::position, "position"}};
}

// Mixture of experts; num_experts 0 is a dense model.
struct MoeConfig {
  int64_t num_experts = 0, router_topk = 2;
  std::optional<int64_t> ffn_hidden_size, shared_expert_ffn_hidden_size, num_shared_experts;
  bool shared_expert_gate = false;
  // These fields decide together which layers have experts (recipe/model_spec.cpp).
  std::vector<int64_t> layer_freq{1}, dense_layers;
  std::optional<int64_t> sparse_step;
  int64_t first_dense_layers = 0;
  RouterScore router_score = RouterScore::softmax;
  bool router_pre_softmax = false, norm_topk_prob = true;
  double router_topk_scaling_factor = 1.0;
  ElementType router_dtype = ElementType::fp32;
  std::optional<int64_t> num_groups, group_topk, group_score_topk;
  std::vector<LoadBalancing> load_balancing_type{LoadBalancing::none};
  std::vector<double> aux_loss_coeff{0.0};
  double z_loss_coeff = 0.0, router_bias_update_rate = 0.0;
  bool router_bias = false;
  std::optional<double> expert_capacity_factor;
  TokenDropPolicy token_drop_policy = TokenDropPolicy::probs;
  bool pad_expert_input_to_capacity = false;
  TokenDispatch token_dispatcher = TokenDispatch::all_to_all;
  bool shared_expert_overlap = false;
  bool required_by_family = false;  // all models of the architecture have experts; not a setting

  bool has_router_bias() const { return router_bias || router_bias_update_rate > 0; }

  static constexpr auto fields = std::tuple{
      Field{"num_experts",
            &MoeConfig::num_experts,
            "experts per layer; 0: a dense model",
            {.aliases = "model.num_moe_experts model.num_experts model.num_local_experts "
                        "model.n_routed_experts",
             .min = 0,
             .max = 1 << 20,
             .none_means = "0"}},
      Field{"router_topk",
            &MoeConfig::router_topk,
            "experts that a token is sent to",
            {.aliases = "model.moe_router_topk model.num_experts_per_tok", .min = 1}},
      Field{"ffn_hidden_size",
            &MoeConfig::ffn_hidden_size,
            "width of one expert; model.ffn_hidden_size unless set",
            {.aliases = "model.moe_ffn_hidden_size model.moe_intermediate_size",
             .min = 1,
             .max = 1 << 24}},
      Field{"shared_expert_ffn_hidden_size",
            &MoeConfig::shared_expert_ffn_hidden_size,
            "width of the shared expert, which computes every token",
            {.aliases = "model.moe_shared_expert_intermediate_size "
                        "model.shared_expert_intermediate_size",
             .min = 1,
             .max = 1 << 24}},
      Field{"num_shared_experts",
            &MoeConfig::num_shared_experts,
            "sets shared_expert_ffn_hidden_size to this many times ffn_hidden_size",
            {.aliases = "model.n_shared_experts", .min = 0, .max = 1 << 20}},
      Field{"shared_expert_gate",
            &MoeConfig::shared_expert_gate,
            "multiply the shared expert's output by a learned sigmoid gate per token",
            {.aliases = "model.moe_shared_expert_gate"}},
      Field{"layer_freq",
            &MoeConfig::layer_freq,
            "n: the layers 0, n, 2 n, ... have experts; or a list, 1 for a layer with experts and "
            "0 for one without",
            {.aliases = "model.moe_layer_freq", .min = 0}},
      Field{"sparse_step",
            &MoeConfig::sparse_step,
            "n: the layers n - 1, 2 n - 1, ... have experts, counted from 0 as in Qwen",
            {.aliases = "model.decoder_sparse_step", .min = 1}},
      Field{"dense_layers",
            &MoeConfig::dense_layers,
            "layers without experts by their numbers, from 0",
            {.aliases = "model.mlp_only_layers", .min = 0}},
      Field{"first_dense_layers",
            &MoeConfig::first_dense_layers,
            "layers at the beginning without experts",
            {.aliases = "model.first_k_dense_replace", .min = 0}},
      Field{"router_score",
            &MoeConfig::router_score,
            "function that turns the router's logits into scores",
            {.aliases = "model.moe_router_score_function model.scoring_func"}},
      Field{"router_pre_softmax",
            &MoeConfig::router_pre_softmax,
            "softmax over all experts before the choice, instead of over the chosen ones after it; "
            "implies norm_topk_prob: false unless that is set",
            {.aliases = "model.moe_router_pre_softmax"}},
      Field{"norm_topk_prob",
            &MoeConfig::norm_topk_prob,
            "the weights of a token's experts sum to 1; false by itself means router_pre_softmax: "
            "true under softmax",
            {.aliases = "model.norm_topk_prob"}},
      Field{"router_topk_scaling_factor",
            &MoeConfig::router_topk_scaling_factor,
            "multiplies the weights of a token's experts",
            {.aliases = "model.moe_router_topk_scaling_factor model.routed_scaling_factor",
             .min = 0,
             .above_min = true,
             .none_means = "1"}},
      Field{
          "router_dtype",
          &MoeConfig::router_dtype,
          "element type of the router's logits",
          {.aliases = "model.moe_router_dtype model.backend.gate_precision", .none_means = "fp32"}},
      Field{"num_groups",
            &MoeConfig::num_groups,
            "number of groups of experts; a token's experts come from group_topk of them",
            {.aliases = "model.moe_router_num_groups model.n_group", .min = 1}},
      Field{"group_topk",
            &MoeConfig::group_topk,
            "number of groups that a token's experts come from",
            {.aliases = "model.moe_router_group_topk model.topk_group", .min = 1}},
      Field{"group_score_topk",
            &MoeConfig::group_score_topk,
            "a group's score is the sum of its best group_score_topk scores (DeepSeek-V2: 1; V3: "
            "2); none: of router_topk / group_topk",
            {.min = 1}},
      Field{"load_balancing_type",
            &MoeConfig::load_balancing_type,
            "losses that balance the experts' loads: over a micro-batch (aux_loss), a sample "
            "(seq_aux_loss), or the previous global batch (global_aux_loss); one, or a list",
            {.aliases = "model.moe_router_load_balancing_type"}},
      Field{"aux_loss_coeff",
            &MoeConfig::aux_loss_coeff,
            "weight of each load-balancing loss",
            {.aliases = "model.moe_aux_loss_coeff model.router_aux_loss_coef", .min = 0}},
      Field{"z_loss_coeff",
            &MoeConfig::z_loss_coeff,
            "weight of the router's z-loss",
            {.aliases = "model.moe_z_loss_coeff", .min = 0, .none_means = "0"}},
      Field{"router_bias_update_rate",
            &MoeConfig::router_bias_update_rate,
            "update step of the router biases that balance experts without a loss; 0: the biases "
            "are constant",
            {.min = 0, .max = 1}},
      Field{"router_bias", &MoeConfig::router_bias,
            "choose experts by their scores plus a bias per expert, which is 0 at first or comes "
            "with the weights; router_bias_update_rate implies it"},
      Field{"expert_capacity_factor",
            &MoeConfig::expert_capacity_factor,
            "most tokens of a micro-batch that an expert takes in training, relative to an equal "
            "share; none: not limited",
            {.min = 0, .above_min = true}},
      Field{"token_drop_policy",
            &MoeConfig::token_drop_policy,
            "which tokens an expert above its capacity drops: those of the lowest weight (probs), "
            "or the last (position)",
            {.aliases = "model.moe_token_drop_policy"}},
      Field{"pad_expert_input_to_capacity",
            &MoeConfig::pad_expert_input_to_capacity,
            "pad each expert's tokens to its capacity",
            {.aliases = "model.moe_pad_expert_input_to_capacity"}},
      Field{"token_dispatcher",
            &MoeConfig::token_dispatcher,
            "how tokens are sent to their experts",
            {.aliases = "model.moe_token_dispatcher_type"}},
      Field{"shared_expert_overlap",
            &MoeConfig::shared_expert_overlap,
            "compute the shared expert while tokens are exchanged",
            {.aliases = "model.moe_shared_expert_overlap"}}};
};

// The source of a run's initial weights.
enum class WeightInit { weights, random };
constexpr auto enum_names(WeightInit) {
  return std::array{EnumName{WeightInit::weights, "weights"},
                    EnumName{WeightInit::random, "random"}};
}

// The defaults are those of the llama family; ModelSource has those of other families.
// There an embedding_multiplier of 0 means the square root of hidden_size until resolve_recipe()
// replaces it.
struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int64_t num_layers = 12, hidden_size = 768, num_attention_heads = 12;
  std::optional<int64_t> num_query_groups, kv_channels, ffn_hidden_size;
  int64_t vocab_size = 0;
  std::optional<int64_t> max_position_embeddings;
  NormKind normalization = NormKind::rms;
  NormPlacement norm_placement = NormPlacement::pre;
  bool layernorm_zero_centered_gamma = false;
  double norm_epsilon = 1e-5;
  PositionEmbedding position_embedding = PositionEmbedding::rope;
  double rotary_base = 10000.0, rotary_percent = 1.0;
  std::optional<double> rotary_base_local;
  std::vector<int64_t> no_rope_freq{0};
  RopeScalingConfig rope_scaling;
  Activation activation = Activation::swiglu;
  bool add_bias_linear = false, add_qkv_bias = false, attention_bias = false, mlp_bias = false;
  bool qk_layernorm = false, qk_layernorm_all_heads = false;
  std::optional<double> query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping;
  std::optional<double> attention_multiplier;
  double embedding_multiplier = 1.0, residual_multiplier = 1.0, logits_scaling = 1.0;
  bool share_embeddings_and_output_weights = false;
  double hidden_dropout = 0.0, attention_dropout = 0.0, embedding_dropout = 0.0;
  double init_method_std = 0.02;
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;
  int64_t mtp_num_layers = 0;
  double mtp_loss_scaling_factor = 0.1;
  bool mtp_use_repeated_layer = false;
  int64_t kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128;
  std::optional<int64_t> window_size;
  std::vector<int64_t> window_attn_skip_freq{0};
  std::optional<std::string> from;
  std::vector<std::string> ignore_keys;
  WeightInit init = WeightInit::weights;
  MoeConfig moe;

  // Sizes, with defaults for unset ones; in a loaded recipe all are set.
  int64_t kv_heads() const { return num_query_groups.value_or(num_attention_heads); }
  int64_t head_dim() const {
    if (multi_latent_attention) return qk_nope_head_dim + qk_rope_head_dim;
    return kv_channels.value_or(hidden_size / num_attention_heads);
  }
  int64_t rotary_dim() const {
    return multi_latent_attention ? qk_rope_head_dim : int64_t(double(head_dim()) * rotary_percent);
  }
  // The layers of multi-token prediction, which follow the num_layers others.
  int64_t mtp_layers() const {
    return mtp_use_repeated_layer ? std::min<int64_t>(1, mtp_num_layers) : mtp_num_layers;
  }
  bool gated() const { return is_gated(activation); }
  int64_t ffn_size() const;  // gated: 8/3 of the hidden size rounded up to 64; else 4 times
  bool qkv_bias() const { return add_bias_linear || add_qkv_bias || attention_bias; }
  bool proj_bias() const { return add_bias_linear || attention_bias; }
  bool fc_bias() const { return add_bias_linear || mlp_bias; }

  static constexpr auto fields = std::tuple{
      Field{"architecture",
            &ModelConfig::architecture,
            "model family; sets the defaults of the fields below",
            {.aliases = "model.model_type"}},
      Field{"num_layers",
            &ModelConfig::num_layers,
            "transformer layers",
            {.aliases = "model.num_hidden_layers model.n_layer", .min = 1, .max = 100000}},
      Field{"hidden_size",
            &ModelConfig::hidden_size,
            "width of the residual stream",
            {.aliases = "model.n_embd model.d_model", .min = 1, .max = 1 << 20}},
      Field{"num_attention_heads",
            &ModelConfig::num_attention_heads,
            "query heads",
            {.aliases = "model.n_head", .min = 1, .max = 1 << 16}},
      Field{"num_query_groups",
            &ModelConfig::num_query_groups,
            "key-value heads; fewer than query heads is grouped-query attention",
            {.aliases = "model.num_kv_heads model.num_key_value_heads", .min = 1, .max = 1 << 16}},
      Field{"kv_channels",
            &ModelConfig::kv_channels,
            "size of one head; hidden_size / num_attention_heads unless set",
            {.aliases = "model.head_dim", .min = 1, .max = 1 << 16}},
      Field{"ffn_hidden_size",
            &ModelConfig::ffn_hidden_size,
            "width of the MLP; by default 4 hidden_size, or with a gate 8/3 hidden_size rounded up "
            "to a multiple of 64",
            {.aliases = "model.intermediate_size model.n_inner", .min = 1, .max = 1 << 24}},
      Field{"vocab_size",
            &ModelConfig::vocab_size,
            "size of the vocabulary; 0: the tokenizer's",
            {.min = 0, .max = 1 << 30}},
      Field{"max_position_embeddings",
            &ModelConfig::max_position_embeddings,
            "longest sequence that the model supports; dataset.seq_length unless set",
            {.aliases = "model.n_positions", .unit = "tokens", .min = 1}},
      Field{"normalization", &ModelConfig::normalization, "normalization of each block"},
      Field{"norm_placement", &ModelConfig::norm_placement,
            "norms of the inputs of attention and MLP (pre), of their outputs (post), or of both"},
      Field{"layernorm_zero_centered_gamma", &ModelConfig::layernorm_zero_centered_gamma,
            "norms multiply by 1 + weight, and the initial weight is 0"},
      Field{"norm_epsilon",
            &ModelConfig::norm_epsilon,
            "added to the variance",
            {.aliases = "model.layernorm_epsilon model.rms_norm_eps model.layer_norm_epsilon",
             .min = 0,
             .max = 1,
             .above_min = true}},
      Field{"position_embedding",
            &ModelConfig::position_embedding,
            "rotary or learned positions",
            {.aliases = "model.position_embedding_type"}},
      Field{"rotary_base",
            &ModelConfig::rotary_base,
            "base of the rotary wavelengths",
            {.aliases = "model.rope_theta", .min = 1, .above_min = true}},
      Field{"rotary_percent",
            &ModelConfig::rotary_percent,
            "fraction of each head that is rotated, starting at its first element; 1: all of it",
            {.aliases = "model.partial_rotary_factor", .min = 0, .max = 1, .above_min = true}},
      Field{"rotary_base_local",
            &ModelConfig::rotary_base_local,
            "base of the rotary wavelengths in layers with a window; rope_scaling does not apply "
            "there",
            {.aliases = "model.rope_local_base_freq", .min = 1, .above_min = true}},
      Field{"no_rope_freq",
            &ModelConfig::no_rope_freq,
            "n: the layers n - 1, 2 n - 1, ... have no rotary positions; or a list, 1 for a layer "
            "without and 0 for a layer with rotary positions; 0: all layers have them",
            {.min = 0}},
      Field{"rope_scaling",
            &ModelConfig::rope_scaling,
            "scaling of rotary positions for longer contexts",
            {.shorthand = "type"}},
      Field{"activation",
            &ModelConfig::activation,
            "swiglu and geglu (with gelu_tanh) are gated and have two input projections; gelu "
            "(with erf) and gelu_tanh have one",
            {.aliases = "model.hidden_act model.activation_function"}},
      Field{"add_bias_linear", &ModelConfig::add_bias_linear, "biases on every linear layer"},
      Field{"add_qkv_bias",
            &ModelConfig::add_qkv_bias,
            "biases on the query, key and value projection",
            {.aliases = "model.qkv_bias"}},
      Field{"attention_bias", &ModelConfig::attention_bias,
            "biases on all four projections of attention: add_qkv_bias, and the output projection"},
      Field{"mlp_bias", &ModelConfig::mlp_bias, "biases on the linear layers of the MLP"},
      Field{"qk_layernorm", &ModelConfig::qk_layernorm,
            "normalize queries and keys per head; latent attention "
            "always normalizes its vectors instead"},
      Field{"qk_layernorm_all_heads", &ModelConfig::qk_layernorm_all_heads,
            "qk_layernorm normalizes the queries of all heads together, and likewise the keys "
            "(OLMo 2)"},
      Field{
          "query_pre_attn_scalar",
          &ModelConfig::query_pre_attn_scalar,
          "attention scores are divided by the square root of this, instead of that of kv_channels",
          {.min = 0, .above_min = true}},
      Field{
          "attention_multiplier",
          &ModelConfig::attention_multiplier,
          "attention scores are multiplied by this, instead of divided by a square root (Granite)",
          {.min = 0, .above_min = true}},
      Field{"attn_logit_softcapping",
            &ModelConfig::attn_logit_softcapping,
            "attention scores s become c tanh(s / c)",
            {.min = 0, .above_min = true}},
      Field{"final_logit_softcapping",
            &ModelConfig::final_logit_softcapping,
            "logits z become c tanh(z / c)",
            {.min = 0, .above_min = true}},
      Field{"embedding_multiplier",
            &ModelConfig::embedding_multiplier,
            "factor of the token embeddings (Gemma: the square root of hidden_size)",
            {.min = 0, .above_min = true}},
      Field{"residual_multiplier",
            &ModelConfig::residual_multiplier,
            "factor of the outputs of attention and MLP before they are added (Granite)",
            {.min = 0, .above_min = true}},
      Field{"logits_scaling",
            &ModelConfig::logits_scaling,
            "logits are divided by this (Granite)",
            {.min = 0, .above_min = true}},
      Field{"share_embeddings_and_output_weights",
            &ModelConfig::share_embeddings_and_output_weights,
            "use one matrix for the embedding and the output layer",
            {.aliases = "model.tie_word_embeddings"}},
      Field{"hidden_dropout",
            &ModelConfig::hidden_dropout,
            "dropout before each residual addition",
            {.aliases = "model.resid_pdrop", .min = 0, .max = 1, .below_max = true}},
      Field{"attention_dropout",
            &ModelConfig::attention_dropout,
            "must be 0: mtrain's attention has no dropout",
            {.aliases = "model.attn_pdrop", .min = 0, .max = 1, .below_max = true}},
      Field{"embedding_dropout",
            &ModelConfig::embedding_dropout,
            "dropout after the embedding",
            {.aliases = "model.embd_pdrop", .min = 0, .max = 1, .below_max = true}},
      Field{"init_method_std",
            &ModelConfig::init_method_std,
            "standard deviation of initial weights; divided by sqrt(2 num_layers) for output "
            "projections",
            {.aliases = "model.initializer_range", .min = 0, .max = 10}},
      Field{"multi_latent_attention", &ModelConfig::multi_latent_attention,
            "latent attention: keys and values are expanded from one short vector of each token "
            "(DeepSeek-V2)"},
      Field{"q_lora_rank",
            &ModelConfig::q_lora_rank,
            "latent attention: size of the vector from which queries are expanded; none: they are "
            "projected from the hidden state",
            {.min = 1, .max = 1 << 20}},
      Field{"kv_lora_rank",
            &ModelConfig::kv_lora_rank,
            "latent attention: size of the vector from which keys and values are expanded",
            {.min = 1, .max = 1 << 20}},
      Field{"qk_nope_head_dim",
            &ModelConfig::qk_nope_head_dim,
            "latent attention: elements of a query or key head without a position",
            {.aliases = "model.qk_head_dim", .min = 1, .max = 1 << 16}},
      Field{"qk_rope_head_dim",
            &ModelConfig::qk_rope_head_dim,
            "latent attention: elements of a query or key head with a rotary position; in keys, "
            "all heads share them",
            {.aliases = "model.qk_pos_emb_head_dim", .min = 2, .max = 1 << 16}},
      Field{"v_head_dim",
            &ModelConfig::v_head_dim,
            "latent attention: elements of a value head",
            {.min = 1, .max = 1 << 16}},
      Field{"mtp_num_layers",
            &ModelConfig::mtp_num_layers,
            "multi-token prediction: tokens that are predicted beyond the next one, each by a "
            "layer like the last one; training alone runs these layers",
            {.aliases = "model.num_nextn_predict_layers", .min = 0, .max = 64}},
      Field{"mtp_loss_scaling_factor",
            &ModelConfig::mtp_loss_scaling_factor,
            "multi-token prediction: factor of the mean of the depths' losses, which is added to "
            "the loss",
            {.min = 0}},
      Field{"mtp_use_repeated_layer", &ModelConfig::mtp_use_repeated_layer,
            "multi-token prediction: one layer predicts all further tokens, instead of one each"},
      Field{"window_size",
            &ModelConfig::window_size,
            "sliding window: a token attends to this many tokens, itself included",
            {.aliases = "model.sliding_window", .unit = "tokens", .min = 1}},
      Field{"window_attn_skip_freq",
            &ModelConfig::window_attn_skip_freq,
            "n: the layers n - 1, 2 n - 1, ... attend to all tokens and ignore window_size; or a "
            "list, 1 for a layer with the window and 0 for a layer without; 0: all layers have it",
            {.min = 0}},
      Field{"from",
            &ModelConfig::from,
            "Hugging Face folder, or a downloaded model's name on the Hub (organization/name, also "
            "with @revision); its config.json gives the sizes that the recipe does not set",
            {.aliases = "model.pretrained_model_name_or_path model.name_or_path"}},
      Field{"ignore_keys", &ModelConfig::ignore_keys,
            "keys of that config.json to ignore: unknown to mtrain, and without effect on what the "
            "model computes"},
      Field{"init", &ModelConfig::init,
            "with model.from: start from that folder's weights, or from random ones"},
      Field{"moe", &ModelConfig::moe, "mixture of experts", {.shorthand = "num_experts"}}};
};

}  // namespace mtrain::recipe
