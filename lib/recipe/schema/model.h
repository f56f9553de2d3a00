// model: the shape of the network.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/token_dispatch.h"
#include "recipe/schema/element_type.h"
#include "recipe/schema/field.h"
#include "recipe/schema/rope.h"

namespace mtrain::recipe {

// The last six are families of models with experts.
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
  mixtral,
  qwen2_moe,
  qwen3_moe,
  deepseek_moe,
  dots1,
  glm4_moe
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
                    EnumName{Architecture::mixtral, "mixtral"},
                    EnumName{Architecture::qwen2_moe, "qwen2_moe"},
                    EnumName{Architecture::qwen3_moe, "qwen3_moe"},
                    EnumName{Architecture::deepseek_moe, "deepseek_moe"},
                    EnumName{Architecture::dots1, "dots1"},
                    EnumName{Architecture::glm4_moe, "glm4_moe"}};
}

enum class Normalization { rmsnorm, layernorm };
constexpr auto enum_names(Normalization) {
  return std::array{EnumName{Normalization::rmsnorm, "rmsnorm"},
                    EnumName{Normalization::layernorm, "layernorm"}};
}

// A layer has norms of the inputs of attention and MLP, of their outputs before these
// are added to the residual stream (OLMo 2), or of both (Gemma 2).
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

// gelu is the exact form by erf, gelu_tanh the approximation that GPT-2 was trained with; geglu is
// a gate by gelu_tanh (Gemma). The names after the fourth are Hugging Face's.
enum class Activation { swiglu, gelu, gelu_tanh, geglu };
constexpr auto enum_names(Activation) {
  return std::array{EnumName{Activation::swiglu, "swiglu"},
                    EnumName{Activation::gelu, "gelu"},
                    EnumName{Activation::gelu_tanh, "gelu_tanh"},
                    EnumName{Activation::geglu, "geglu"},
                    EnumName{Activation::swiglu, "silu"},
                    EnumName{Activation::gelu_tanh, "gelu_new"},
                    EnumName{Activation::gelu_tanh, "gelu_pytorch_tanh"}};
}

enum class RouterScore { softmax, sigmoid };
constexpr auto enum_names(RouterScore) {
  return std::array{EnumName{RouterScore::softmax, "softmax"},
                    EnumName{RouterScore::sigmoid, "sigmoid"}};
}

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
  // ModelConfig::has_experts() combines these fields, which say which layers have experts.
  std::vector<int64_t> layer_freq{1}, dense_layers;
  std::optional<int64_t> sparse_step;
  int64_t first_dense_layers = 0;
  RouterScore router_score = RouterScore::softmax;
  bool router_pre_softmax = false, norm_topk_prob = true;
  double router_topk_scaling_factor = 1.0;
  ElementType router_dtype = ElementType::fp32;
  std::optional<int64_t> num_groups, group_topk;
  std::vector<LoadBalancing> load_balancing_type{LoadBalancing::none};
  std::vector<double> aux_loss_coeff{0.0};
  double z_loss_coeff = 0.0, router_bias_update_rate = 0.0;
  bool router_bias = false;
  std::optional<double> expert_capacity_factor;
  TokenDropPolicy token_drop_policy = TokenDropPolicy::probs;
  bool pad_expert_input_to_capacity = false;
  TokenDispatch token_dispatcher = TokenDispatch::all_to_all;
  bool shared_expert_overlap = false;

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
            "width of an expert that sees every token",
            {.aliases = "model.moe_shared_expert_intermediate_size "
                        "model.shared_expert_intermediate_size",
             .min = 1,
             .max = 1 << 24}},
      Field{"num_shared_experts",
            &MoeConfig::num_shared_experts,
            "another way to give shared_expert_ffn_hidden_size: this many times ffn_hidden_size",
            {.aliases = "model.n_shared_experts", .min = 0, .max = 1 << 20}},
      Field{"shared_expert_gate",
            &MoeConfig::shared_expert_gate,
            "scale the shared expert's output by a sigmoid of the token",
            {.aliases = "model.moe_shared_expert_gate"}},
      Field{"layer_freq",
            &MoeConfig::layer_freq,
            "n: the layers 0, n, 2 n, ... have experts; or a 0 or 1 for each layer",
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
            "how logits become scores",
            {.aliases = "model.moe_router_score_function model.scoring_func"}},
      Field{
          "router_pre_softmax",
          &MoeConfig::router_pre_softmax,
          "softmax over all experts before the choice, instead of over the chosen ones; by itself "
          "it means norm_topk_prob: false",
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
            "groups of experts, of which a token's experts come from group_topk",
            {.aliases = "model.moe_router_num_groups model.n_group", .min = 1}},
      Field{"group_topk",
            &MoeConfig::group_topk,
            "groups that a token's experts come from",
            {.aliases = "model.moe_router_group_topk model.topk_group", .min = 1}},
      Field{"load_balancing_type",
            &MoeConfig::load_balancing_type,
            "losses that spread tokens over the experts: of a micro-batch, a sample, or the loads "
            "of the global batch before; one, or a list",
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
            "step of the biases that balance experts without a loss; 0: they stay as they are",
            {.min = 0, .max = 1}},
      Field{"router_bias", &MoeConfig::router_bias,
            "experts are chosen by their scores plus a bias of each expert, which begins at 0 or "
            "comes with the weights; router_bias_update_rate implies it"},
      Field{"expert_capacity_factor",
            &MoeConfig::expert_capacity_factor,
            "an expert takes at most this many times an even share of a micro-batch's choices in "
            "training; none: all",
            {.min = 0, .above_min = true}},
      Field{"token_drop_policy",
            &MoeConfig::token_drop_policy,
            "which tokens an expert above its capacity drops: of the lowest weight, or the last",
            {.aliases = "model.moe_token_drop_policy"}},
      Field{"pad_expert_input_to_capacity",
            &MoeConfig::pad_expert_input_to_capacity,
            "pad each expert's tokens to its capacity",
            {.aliases = "model.moe_pad_expert_input_to_capacity"}},
      Field{"token_dispatcher",
            &MoeConfig::token_dispatcher,
            "how tokens travel to their experts",
            {.aliases = "model.moe_token_dispatcher_type"}},
      Field{"shared_expert_overlap",
            &MoeConfig::shared_expert_overlap,
            "compute the shared expert while tokens travel",
            {.aliases = "model.moe_shared_expert_overlap"}}};
};

// WeightInit says where a run's first weights come from.
enum class WeightInit { weights, random };
constexpr auto enum_names(WeightInit) {
  return std::array{EnumName{WeightInit::weights, "weights"},
                    EnumName{WeightInit::random, "random"}};
}

// The defaults are those of the llama family; model_defaults() gives another family's, where an
// embedding_multiplier of 0 stands for the square root of hidden_size until resolve_recipe().
struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int64_t num_layers = 12, hidden_size = 768, num_attention_heads = 12;
  std::optional<int64_t> num_query_groups, kv_channels, ffn_hidden_size;
  int64_t vocab_size = 0;
  std::optional<int64_t> max_position_embeddings;
  Normalization normalization = Normalization::rmsnorm;
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
  double embedding_multiplier = 1.0;
  bool share_embeddings_and_output_weights = false;
  double hidden_dropout = 0.0, attention_dropout = 0.0, embedding_dropout = 0.0;
  double init_method_std = 0.02;
  std::optional<int64_t> window_size;
  std::vector<int64_t> window_attn_skip_freq{0};
  std::optional<std::string> from;
  std::vector<std::string> ignore_keys;
  WeightInit init = WeightInit::weights;
  MoeConfig moe;

  // Sizes with their defaults for those that are unset; a loaded recipe has all of them set.
  int64_t kv_heads() const { return num_query_groups.value_or(num_attention_heads); }
  int64_t head_dim() const { return kv_channels.value_or(hidden_size / num_attention_heads); }
  int64_t rotary_dim() const { return int64_t(double(head_dim()) * rotary_percent); }
  bool gated() const { return activation == Activation::swiglu || activation == Activation::geglu; }
  int64_t ffn_size() const;  // gated: 8/3 of the hidden size rounded up to 64; else 4 times
  bool qkv_bias() const { return add_bias_linear || add_qkv_bias || attention_bias; }
  bool proj_bias() const { return add_bias_linear || attention_bias; }
  bool fc_bias() const { return add_bias_linear || mlp_bias; }
  // These say of a layer, from 0, whether it has experts, rotary positions, and the window.
  bool has_experts(int64_t layer) const;
  bool has_rope(int64_t layer) const;
  bool has_window(int64_t layer) const;

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
      Field{
          "ffn_hidden_size",
          &ModelConfig::ffn_hidden_size,
          "width of the MLP; by default 4 hidden, or 8/3 hidden rounded up to 64 where it is gated",
          {.aliases = "model.intermediate_size model.n_inner", .min = 1, .max = 1 << 24}},
      Field{"vocab_size",
            &ModelConfig::vocab_size,
            "vocabulary; 0 takes the tokenizer's",
            {.min = 0, .max = 1 << 30}},
      Field{"max_position_embeddings",
            &ModelConfig::max_position_embeddings,
            "longest sequence the model may see; dataset.seq_length unless set",
            {.aliases = "model.n_positions", .unit = "tokens", .min = 1}},
      Field{"normalization", &ModelConfig::normalization, "normalization of each block"},
      Field{"norm_placement", &ModelConfig::norm_placement,
            "norms of the inputs of attention and MLP (pre), of their outputs (post), or of both"},
      Field{"layernorm_zero_centered_gamma", &ModelConfig::layernorm_zero_centered_gamma,
            "norms multiply by 1 + weight, and the weight begins at 0"},
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
            "part of each head that is rotated, from its first element on; 1: all of it",
            {.aliases = "model.partial_rotary_factor", .min = 0, .max = 1, .above_min = true}},
      Field{
          "rotary_base_local",
          &ModelConfig::rotary_base_local,
          "base of the rotary wavelengths in layers with a window, whose positions are not scaled",
          {.aliases = "model.rope_local_base_freq", .min = 1, .above_min = true}},
      Field{"no_rope_freq",
            &ModelConfig::no_rope_freq,
            "n: the layers n - 1, 2 n - 1, ... have no rotary positions; or a 1 for each layer "
            "without, and a 0 for each with them; 0: all layers have them",
            {.min = 0}},
      Field{"rope_scaling",
            &ModelConfig::rope_scaling,
            "longer contexts for rotary positions",
            {.shorthand = "type"}},
      Field{"activation",
            &ModelConfig::activation,
            "swiglu and geglu (by gelu_tanh) are gated (two input projections); gelu (by erf) and "
            "gelu_tanh are plain",
            {.aliases = "model.hidden_act model.activation_function"}},
      Field{"add_bias_linear", &ModelConfig::add_bias_linear, "biases on every linear layer"},
      Field{"add_qkv_bias",
            &ModelConfig::add_qkv_bias,
            "biases on the query, key and value projection",
            {.aliases = "model.qkv_bias"}},
      Field{"attention_bias", &ModelConfig::attention_bias,
            "biases on all four projections of attention: add_qkv_bias, and the output projection"},
      Field{"mlp_bias", &ModelConfig::mlp_bias, "biases on the linear layers of the MLP"},
      Field{"qk_layernorm", &ModelConfig::qk_layernorm, "normalize queries and keys per head"},
      Field{"qk_layernorm_all_heads", &ModelConfig::qk_layernorm_all_heads,
            "qk_layernorm normalizes the queries of all heads as one, and so the keys (OLMo 2)"},
      Field{"query_pre_attn_scalar",
            &ModelConfig::query_pre_attn_scalar,
            "attention scores are divided by its square root, instead of that of a head's size",
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
            "token embeddings are multiplied by it (Gemma: the square root of hidden_size)",
            {.min = 0, .above_min = true}},
      Field{"share_embeddings_and_output_weights",
            &ModelConfig::share_embeddings_and_output_weights,
            "one matrix for embedding and logits",
            {.aliases = "model.tie_word_embeddings"}},
      Field{"hidden_dropout",
            &ModelConfig::hidden_dropout,
            "dropout before each residual addition",
            {.aliases = "model.resid_pdrop", .min = 0, .max = 1, .below_max = true}},
      Field{"attention_dropout",
            &ModelConfig::attention_dropout,
            "must be 0: flash attention here has none",
            {.aliases = "model.attn_pdrop", .min = 0, .max = 1, .below_max = true}},
      Field{"embedding_dropout",
            &ModelConfig::embedding_dropout,
            "dropout after the embedding",
            {.aliases = "model.embd_pdrop", .min = 0, .max = 1, .below_max = true}},
      Field{"init_method_std",
            &ModelConfig::init_method_std,
            "standard deviation of initial weights; output projections get it / sqrt(2 layers)",
            {.aliases = "model.initializer_range", .min = 0, .max = 10}},
      Field{"window_size",
            &ModelConfig::window_size,
            "sliding window: a token attends to this many tokens up to itself",
            {.aliases = "model.sliding_window", .unit = "tokens", .min = 1}},
      Field{
          "window_attn_skip_freq",
          &ModelConfig::window_attn_skip_freq,
          "n: the layers n - 1, 2 n - 1, ... attend to all tokens in spite of window_size; or a 1 "
          "for each layer with the window, and a 0 for each without; 0: all layers have it",
          {.min = 0}},
      Field{"from",
            &ModelConfig::from,
            "Hugging Face folder whose config.json gives the sizes that the recipe leaves out",
            {.aliases = "model.pretrained_model_name_or_path model.name_or_path"}},
      Field{"ignore_keys", &ModelConfig::ignore_keys,
            "keys of that config.json to pass over, which mtrain does not know and nothing in the "
            "model computes with"},
      Field{"init", &ModelConfig::init,
            "with model.from: weights takes that folder's weights, random new ones"},
      Field{"moe", &ModelConfig::moe, "mixture of experts", {.shorthand = "num_experts"}}};
};

// Returns the published choices of the family (norm, positions, biases). Sizes keep their defaults.
ModelConfig model_defaults(Architecture architecture);

}  // namespace mtrain::recipe
