// Qwen 2 and 3 (Yang et al. 2024, 2025).
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kQwen2Keys[] = {
    {"hidden_size", "4096"},       {"intermediate_size", "22016"},
    {"num_hidden_layers", "32"},   {"num_attention_heads", "32"},
    {"num_key_value_heads", "32"}, {"head_dim", ""},
    {"vocab_size", "151936"},      {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},    {"rope_theta", "10000"},
    {"hidden_act", "silu"},        {"tie_word_embeddings", "false"},
    {"initializer_range", "0.02"}, {"attention_dropout", "0.0"}};

constexpr FamilyKey kQwen3Keys[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "22016"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "32"},    {"head_dim", "128"},
    {"vocab_size", "151936"},         {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"attention_bias", "false"},
    {"tie_word_embeddings", "false"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

void qwen2_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 1e6;
  m.add_qkv_bias = true;
}

void qwen3_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 1e6;
  m.qk_layernorm = true;
}

}  // namespace

Family qwen2() {
  return {.model_type = "qwen2",
          .class_name = "Qwen2ForCausalLM",
          .config_class = "Qwen2Config",
          .bridge_name = "Qwen2",
          .keys = kQwen2Keys,
          .window = WindowRule::from_layer,
          .defaults = qwen2_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp}),
          .buffers = kRopeBuffers};
}

Family qwen3() {
  return {.model_type = "qwen3",
          .class_name = "Qwen3ForCausalLM",
          .config_class = "Qwen3Config",
          .bridge_name = "Qwen3",
          .keys = kQwen3Keys,
          .window = WindowRule::from_layer,
          .defaults = qwen3_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
