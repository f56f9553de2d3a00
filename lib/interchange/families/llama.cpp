// Llama (Touvron et al. 2023). Its choices are the defaults of ModelConfig.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kLlamaKeys[] = {
    {"hidden_size", "4096"},       {"intermediate_size", "11008"},
    {"num_hidden_layers", "32"},   {"num_attention_heads", "32"},
    {"num_key_value_heads", ""},   {"head_dim", ""},
    {"vocab_size", "32000"},       {"max_position_embeddings", "2048"},
    {"rms_norm_eps", "1.0e-6"},    {"rope_theta", "10000"},
    {"hidden_act", "silu"},        {"attention_bias", "false"},
    {"mlp_bias", "false"},         {"tie_word_embeddings", "false"},
    {"initializer_range", "0.02"}, {"attention_dropout", "0.0"}};

}  // namespace

Family llama() {
  return {.model_type = "llama",
          .class_name = "LlamaForCausalLM",
          .config_class = "LlamaConfig",
          .bridge_name = "Llama",
          .keys = kLlamaKeys,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp, kMlpBiases}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
