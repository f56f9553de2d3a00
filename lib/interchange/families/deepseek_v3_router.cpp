// Families with the router of DeepSeek-V3: dots.llm1 and GLM-4.5.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kDots1Keys[] = {{"hidden_size", "4608"},
                                    {"intermediate_size", "10944"},
                                    {"num_hidden_layers", "62"},
                                    {"num_attention_heads", "32"},
                                    {"num_key_value_heads", "32"},
                                    {"head_dim", ""},
                                    {"vocab_size", "152064"},
                                    {"max_position_embeddings", "2048"},
                                    {"rms_norm_eps", "1.0e-6"},
                                    {"rope_theta", "10000"},
                                    {"hidden_act", "silu"},
                                    {"attention_bias", "false"},
                                    {"tie_word_embeddings", "false"},
                                    {"n_routed_experts", ""},
                                    {"num_experts_per_tok", ""},
                                    {"moe_intermediate_size", "1408"},
                                    {"n_shared_experts", ""},
                                    {"first_k_dense_replace", "0"},
                                    {"n_group", "1"},
                                    {"topk_group", "1"},
                                    {"norm_topk_prob", "false"},
                                    {"routed_scaling_factor", "1.0"},
                                    {"initializer_range", "0.02"},
                                    {"attention_dropout", "0.0"}};

// In GLM-4.5, attention_bias does not add a bias to the output projection.
constexpr FamilyKey kGlm4Keys[] = {{"hidden_size", "4096"},
                                   {"intermediate_size", "10944"},
                                   {"num_hidden_layers", "46"},
                                   {"num_attention_heads", "96"},
                                   {"num_key_value_heads", "8"},
                                   {"head_dim", ""},
                                   {"vocab_size", "151552"},
                                   {"max_position_embeddings", "131072"},
                                   {"rms_norm_eps", "1.0e-5"},
                                   {"rope_theta", "10000"},
                                   {"partial_rotary_factor", "0.5"},
                                   {"hidden_act", "silu"},
                                   {"attention_bias", "false", "model.add_qkv_bias"},
                                   {"use_qk_norm", "false"},
                                   {"tie_word_embeddings", "false"},
                                   {"n_routed_experts", "128"},
                                   {"num_experts_per_tok", "8"},
                                   {"moe_intermediate_size", "1408"},
                                   {"n_shared_experts", "1"},
                                   {"first_k_dense_replace", "1"},
                                   {"n_group", "1"},
                                   {"topk_group", "1"},
                                   {"norm_topk_prob", "true"},
                                   {"routed_scaling_factor", "1.0"},
                                   {"initializer_range", "0.02"},
                                   {"attention_dropout", "0.0"}};

// Keys of DeepSeek-V3 that transformers does not read for these families. Folders of dots.llm1 also
// write noaux_tc, which names the selection, as the scoring_func.
constexpr OnlyValue kDeepseekV3Router[] = {
    {"topk_method", "noaux_tc"}, {"scoring_func", "sigmoid noaux_tc"}, {"moe_layer_freq", "1"}};

// The defaults that both families share.
void router_defaults(recipe::MoeConfig& moe) {
  moe.required_by_family = true;
  moe.router_score = RouterScore::sigmoid;
  moe.router_bias = true;
  moe.first_dense_layers = 1;
}

void dots1_defaults(ModelConfig& m) {
  m.rotary_base = 1e7;
  m.qk_layernorm = true;
  router_defaults(m.moe);
}

void glm4_defaults(ModelConfig& m) {
  m.rotary_base = 1e6;
  m.rotary_percent = 0.5;
  m.add_qkv_bias = true;
  router_defaults(m.moe);
}

}  // namespace

Family dots1() {
  return {.model_type = "dots1",
          .class_name = "Dots1ForCausalLM",
          .keys = kDots1Keys,
          .only = kDeepseekV3Router,
          .window = WindowRule::late_layers,
          .deepseek_v3_router = true,
          .defaults = dots1_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp, kExperts, kRouterBias,
                        kSharedExperts}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers};
}

Family glm4_moe() {
  return {.model_type = "glm4_moe",
          .class_name = "Glm4MoeForCausalLM",
          .keys = kGlm4Keys,
          .only = kDeepseekV3Router,
          .deepseek_v3_router = true,
          .defaults = glm4_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp, kExperts, kRouterBias,
                        kSharedExperts, kPrediction}),
          .copies = rows({kPredictionCopies}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers,
          .mtp_layers_key = "num_nextn_predict_layers",
          .mtp_layers_default = 1};
}

}  // namespace mtrain::interchange
