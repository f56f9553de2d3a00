// Families with latent attention: DeepSeek-V2 (and its Lite model); V3, of which Kimi K2 and
// Moonlight have folders, too; and GLM-4.7-Flash.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kV2Keys[] = {{"hidden_size", "4096"},
                                 {"intermediate_size", "11008"},
                                 {"num_hidden_layers", "32"},
                                 {"num_attention_heads", "32"},
                                 {"num_key_value_heads", ""},
                                 {"q_lora_rank", "1536"},
                                 {"kv_lora_rank", "512"},
                                 {"qk_nope_head_dim", "128"},
                                 {"qk_rope_head_dim", "64"},
                                 {"v_head_dim", "128"},
                                 {"head_dim", ""},
                                 {"vocab_size", "102400"},
                                 {"max_position_embeddings", "2048"},
                                 {"rms_norm_eps", "1.0e-6"},
                                 {"rope_theta", "10000"},
                                 {"hidden_act", "silu"},
                                 {"tie_word_embeddings", "false"},
                                 {"n_routed_experts", "64"},
                                 {"num_experts_per_tok", ""},
                                 {"moe_intermediate_size", "1407"},
                                 {"n_shared_experts", "2"},
                                 {"first_k_dense_replace", "0"},
                                 {"routed_scaling_factor", "1.0"},
                                 {"initializer_range", "0.02"},
                                 {"attention_dropout", "0.0"}};

constexpr FamilyKey kV3Keys[] = {{"hidden_size", "7168"},
                                 {"intermediate_size", "18432"},
                                 {"num_hidden_layers", "61"},
                                 {"num_attention_heads", "128"},
                                 {"num_key_value_heads", "128"},
                                 {"q_lora_rank", "1536"},
                                 {"kv_lora_rank", "512"},
                                 {"qk_nope_head_dim", "128"},
                                 {"qk_rope_head_dim", "64"},
                                 {"v_head_dim", "128"},
                                 {"head_dim", ""},
                                 {"vocab_size", "129280"},
                                 {"max_position_embeddings", "4096"},
                                 {"rms_norm_eps", "1.0e-6"},
                                 {"rope_theta", "10000"},
                                 {"hidden_act", "silu"},
                                 {"tie_word_embeddings", "false"},
                                 {"n_routed_experts", "256"},
                                 {"num_experts_per_tok", "8"},
                                 {"moe_intermediate_size", "2048"},
                                 {"n_shared_experts", "1"},
                                 {"first_k_dense_replace", "3"},
                                 {"n_group", "8"},
                                 {"topk_group", "4"},
                                 {"norm_topk_prob", "true"},
                                 {"routed_scaling_factor", "2.5"},
                                 {"initializer_range", "0.02"},
                                 {"attention_dropout", "0.0"}};

constexpr FamilyKey kGlmLiteKeys[] = {{"hidden_size", "2048"},
                                      {"intermediate_size", "10240"},
                                      {"num_hidden_layers", "47"},
                                      {"num_attention_heads", "20"},
                                      {"num_key_value_heads", "20"},
                                      {"q_lora_rank", "768"},
                                      {"kv_lora_rank", "512"},
                                      {"qk_nope_head_dim", "192"},
                                      {"qk_rope_head_dim", "64"},
                                      {"v_head_dim", "256"},
                                      {"head_dim", ""},
                                      {"vocab_size", "154880"},
                                      {"max_position_embeddings", "202752"},
                                      {"rms_norm_eps", "1.0e-5"},
                                      {"rope_theta", "10000"},
                                      {"hidden_act", "silu"},
                                      {"tie_word_embeddings", "false"},
                                      {"n_routed_experts", "64"},
                                      {"num_experts_per_tok", "4"},
                                      {"moe_intermediate_size", "1536"},
                                      {"n_shared_experts", "1"},
                                      {"first_k_dense_replace", "1"},
                                      {"n_group", "1"},
                                      {"topk_group", "1"},
                                      {"norm_topk_prob", "true"},
                                      {"routed_scaling_factor", "1.8"},
                                      {"initializer_range", "0.02"},
                                      {"attention_dropout", "0.0"}};

// The router of V2 never normalizes weights in transformers. A greedy router reads no groups.
constexpr OnlyValue kV2Only[] = {{"topk_method", kAnyValue},  {"scoring_func", "softmax"},
                                 {"norm_topk_prob", "false"}, {"n_group", kAnyValue},
                                 {"topk_group", kAnyValue},   {"moe_layer_freq", "1"}};
constexpr OnlyValue kV3Only[] = {{"topk_method", "noaux_tc"},
                                 {"scoring_func", "sigmoid noaux_tc"},
                                 {"moe_layer_freq", "1"},
                                 {"rope_interleave", "true"}};
constexpr OnlyValue kGlmLiteOnly[] = {{"topk_method", "noaux_tc"},
                                      {"scoring_func", "sigmoid noaux_tc"},
                                      {"moe_layer_freq", "1"},
                                      {"mlp_layer_types", kAnyValue},
                                      {"rope_interleave", "true"}};

constexpr TensorRow kLatentAttention[] = {
    {"layers.{l}.attention.q.weight", "layers.{l}.self_attn.q_proj.weight"},
    {"layers.{l}.attention.q_down.weight", "layers.{l}.self_attn.q_a_proj.weight"},
    {"layers.{l}.attention.q_latent_norm.weight", "layers.{l}.self_attn.q_a_layernorm.weight"},
    {"layers.{l}.attention.q_up.weight", "layers.{l}.self_attn.q_b_proj.weight"},
    {"layers.{l}.attention.kv_down.weight", "layers.{l}.self_attn.kv_a_proj_with_mqa.weight"},
    {"layers.{l}.attention.kv_latent_norm.weight", "layers.{l}.self_attn.kv_a_layernorm.weight"},
    {"layers.{l}.attention.kv_up.weight", "layers.{l}.self_attn.kv_b_proj.weight"}};

void latent_defaults(ModelConfig& m) {
  m.multi_latent_attention = true;
  m.norm_epsilon = 1e-6;
  m.moe.required_by_family = true;
  m.moe.first_dense_layers = 1;
}

void v2_defaults(ModelConfig& m) {
  latent_defaults(m);
  m.moe.router_pre_softmax = true;
  m.moe.norm_topk_prob = false;
}

void v3_defaults(ModelConfig& m) {
  latent_defaults(m);
  m.moe.router_score = RouterScore::sigmoid;
  m.moe.router_bias = true;
}

// The learned values of GLM-4.7-Flash need a larger base of the rotary positions.
void glm_lite_defaults(ModelConfig& m) {
  v3_defaults(m);
  m.norm_epsilon = 1e-5;
  m.rotary_base = 1e6;
}

}  // namespace

Family deepseek_v2() {
  return {.model_type = "deepseek_v2",
          .class_name = "DeepseekV2ForCausalLM",
          .config_class = "DeepseekV2Config",
          .bridge_name = "DeepSeekV2",
          .keys = kV2Keys,
          .only = kV2Only,
          .deepseek_v2_router = true,
          .defaults = v2_defaults,
          .rows = rows({kTrunk, kInputNorms, kLatentAttention, kMlp, kExperts, kSharedExperts}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers};
}

Family deepseek_v3() {
  return {.model_type = "deepseek_v3",
          .class_name = "DeepseekV3ForCausalLM",
          .other_type = "kimi_k2",
          .config_class = "DeepseekV3Config",
          .bridge_name = "DeepSeekV3",
          .keys = kV3Keys,
          .only = kV3Only,
          .deepseek_v3_router = true,
          .defaults = v3_defaults,
          .rows = rows({kTrunk, kInputNorms, kLatentAttention, kMlp, kExperts, kRouterBias,
                        kSharedExperts, kPrediction}),
          .copies = rows({kPredictionCopies}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers,
          .mtp_layers_key = "num_nextn_predict_layers",
          .mtp_layers_default = 1};
}

Family glm4_moe_lite() {
  return {.model_type = "glm4_moe_lite",
          .class_name = "Glm4MoeLiteForCausalLM",
          .config_class = "Glm4MoeLiteConfig",
          .keys = kGlmLiteKeys,
          .only = kGlmLiteOnly,
          .deepseek_v3_router = true,
          .lists_mlp_types = true,
          .defaults = glm_lite_defaults,
          .rows = rows({kTrunk, kInputNorms, kLatentAttention, kMlp, kExperts, kRouterBias,
                        kSharedExperts, kPrediction}),
          .copies = rows({kPredictionCopies}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers,
          .mtp_layers_key = "num_nextn_predict_layers",
          .mtp_layers_default = 1};
}

}  // namespace mtrain::interchange
