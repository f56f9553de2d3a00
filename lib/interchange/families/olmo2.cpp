// OLMo 2 (2025): norms after attention and MLP, and norms of queries and keys over all heads.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kOlmo2Keys[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "11008"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", ""},      {"head_dim", ""},
    {"vocab_size", "50304"},          {"max_position_embeddings", "2048"},
    {"rms_norm_eps", "1.0e-5"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"attention_bias", "false"},
    {"tie_word_embeddings", "false"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

void olmo2_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 5e5;
  m.norm_placement = recipe::NormPlacement::post;
  m.qk_layernorm = m.qk_layernorm_all_heads = true;
}

}  // namespace

Family olmo2() {
  return {.model_type = "olmo2",
          .class_name = "Olmo2ForCausalLM",
          .keys = kOlmo2Keys,
          .rope = RopeRule::linear_by_type,
          .defaults = olmo2_defaults,
          .rows = rows({kTrunk, kOutputNorms, kAttention, kHeadNorms, kMlp}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
