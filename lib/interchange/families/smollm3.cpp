// SmolLM3: every fourth layer has no rotary positions.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

// Configurations written for Llama may have pretraining_tp, which transformers' SmolLM3 ignores.
constexpr FamilyKey kSmollm3Keys[] = {
    {"hidden_size", "2048"},         {"intermediate_size", "11008"},
    {"num_hidden_layers", "36"},     {"num_attention_heads", "16"},
    {"num_key_value_heads", "4"},    {"head_dim", ""},
    {"vocab_size", "128256"},        {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},      {"rope_theta", "2000000"},
    {"hidden_act", "silu"},          {"mlp_bias", "false"},
    {"no_rope_layers", ""},          {"no_rope_layer_interval", ""},
    {"pretraining_tp", ""},          {"attention_bias", "false"},
    {"tie_word_embeddings", "true"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

void smollm3_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 5e6;
  m.no_rope_freq = {4};
  m.share_embeddings_and_output_weights = true;
}

}  // namespace

Family smollm3() {
  return {.model_type = "smollm3",
          .class_name = "SmolLM3ForCausalLM",
          .keys = kSmollm3Keys,
          .window = WindowRule::without_rope,
          .defaults = smollm3_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp, kMlpBiases}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
