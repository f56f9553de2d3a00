// Granite 3 (IBM 2024): Llama with multipliers of embeddings, scores, residuals and logits.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kGraniteKeys[] = {{"hidden_size", "4096"},
                                      {"intermediate_size", "11008"},
                                      {"num_hidden_layers", "32"},
                                      {"num_attention_heads", "32"},
                                      {"num_key_value_heads", ""},
                                      {"head_dim", ""},
                                      {"vocab_size", "32000"},
                                      {"max_position_embeddings", "2048"},
                                      {"rms_norm_eps", "1.0e-6"},
                                      {"rope_theta", "10000"},
                                      {"hidden_act", "silu"},
                                      {"attention_bias", "false"},
                                      {"mlp_bias", "false"},
                                      {"embedding_multiplier", "1.0", "model.embedding_multiplier"},
                                      {"attention_multiplier", "1.0", "model.attention_multiplier"},
                                      {"residual_multiplier", "1.0", "model.residual_multiplier"},
                                      {"logits_scaling", "1.0", "model.logits_scaling"},
                                      {"tie_word_embeddings", "false"},
                                      {"initializer_range", "0.02"},
                                      {"attention_dropout", "0.0"}};

// The values of the 8B model.
void granite_defaults(ModelConfig& m) {
  m.embedding_multiplier = 12;
  m.attention_multiplier = 1.0 / 128;
  m.residual_multiplier = 0.22;
  m.logits_scaling = 16;
  m.share_embeddings_and_output_weights = true;
}

}  // namespace

Family granite() {
  return {.model_type = "granite",
          .class_name = "GraniteForCausalLM",
          .config_class = "GraniteConfig",
          .keys = kGraniteKeys,
          .defaults = granite_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp, kMlpBiases}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
