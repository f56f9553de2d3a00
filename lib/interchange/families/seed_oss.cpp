// Seed-OSS (ByteDance 2025): Llama with biases of queries, keys and values.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kSeedOssKeys[] = {{"hidden_size", "4096"},
                                      {"intermediate_size", "27648"},
                                      {"num_hidden_layers", "64"},
                                      {"num_attention_heads", "80"},
                                      {"num_key_value_heads", "8"},
                                      {"head_dim", "128"},
                                      {"vocab_size", "155136"},
                                      {"max_position_embeddings", "524288"},
                                      {"rms_norm_eps", "1.0e-6"},
                                      {"rope_theta", "10000"},
                                      {"hidden_act", "silu"},
                                      {"attention_bias", "true", "model.add_qkv_bias"},
                                      {"mlp_bias", "false"},
                                      {"tie_word_embeddings", "false"},
                                      {"initializer_range", "0.02"},
                                      {"attention_dropout", "0.1"},
                                      {.key = "residual_dropout",
                                       .omitted = "0.1",
                                       .field = "model.hidden_dropout",
                                       .recipe_wins = true}};

constexpr OnlyValue kSeedOssOnly[] = {{"attention_out_bias", "false"}};

void seed_oss_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 1e7;
  m.add_qkv_bias = true;
}

}  // namespace

Family seed_oss() {
  return {.model_type = "seed_oss",
          .class_name = "SeedOssForCausalLM",
          .config_class = "SeedOssConfig",
          .keys = kSeedOssKeys,
          .only = kSeedOssOnly,
          .defaults = seed_oss_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp, kMlpBiases}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
