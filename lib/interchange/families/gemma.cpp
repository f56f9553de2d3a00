// Gemma 2 and the text models of Gemma 3 (Gemma Team 2024, 2025).
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

// Some folders repeat the width of windows as sliding_window_size, which transformers ignores.
constexpr FamilyKey kGemma2Keys[] = {{"hidden_size", "2304"},
                                     {"intermediate_size", "9216"},
                                     {"num_hidden_layers", "26"},
                                     {"num_attention_heads", "8"},
                                     {"num_key_value_heads", "4"},
                                     {"head_dim", "256"},
                                     {"vocab_size", "256000"},
                                     {"max_position_embeddings", "8192"},
                                     {"rms_norm_eps", "1.0e-6"},
                                     {"rope_theta", "10000"},
                                     {"hidden_activation", "gelu_pytorch_tanh"},
                                     {"query_pre_attn_scalar", "256"},
                                     {"attn_logit_softcapping", "50.0"},
                                     {"final_logit_softcapping", "30.0"},
                                     {"sliding_window_size", ""},
                                     {"attention_bias", "false"},
                                     {"tie_word_embeddings", "true"},
                                     {"initializer_range", "0.02"},
                                     {"attention_dropout", "0.0"}};

// transformers also has a key to cap attention scores, but its Gemma 3 does not cap them.
constexpr FamilyKey kGemma3Keys[] = {
    {"hidden_size", "2304"},           {"intermediate_size", "9216"},
    {"num_hidden_layers", "26"},       {"num_attention_heads", "8"},
    {"num_key_value_heads", "4"},      {"head_dim", "256"},
    {"vocab_size", "262208"},          {"max_position_embeddings", "131072"},
    {"rms_norm_eps", "1.0e-6"},        {"rope_theta", "1000000"},
    {"rope_local_base_freq", "10000"}, {"hidden_activation", "gelu_pytorch_tanh"},
    {"query_pre_attn_scalar", "256"},  {"final_logit_softcapping", ""},
    {"sliding_window_pattern", ""},    {"attention_bias", "false"},
    {"tie_word_embeddings", "true"},   {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr TensorRow kSandwichInputs[] = {
    {"layers.{l}.attention.norm.weight", "layers.{l}.input_layernorm.weight"},
    {"layers.{l}.mlp.norm.weight", "layers.{l}.pre_feedforward_layernorm.weight"}};

// The defaults that both families share.
void shared_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.norm_placement = recipe::NormPlacement::sandwich;
  m.layernorm_zero_centered_gamma = true;
  m.activation = recipe::Activation::geglu;
  m.embedding_multiplier = 0;  // 0 means the square root of hidden_size
  m.share_embeddings_and_output_weights = true;
}

void gemma2_defaults(ModelConfig& m) {
  shared_defaults(m);
  m.attn_logit_softcapping = 50;
  m.final_logit_softcapping = 30;
  m.window_size = 4096;
  m.window_attn_skip_freq = {2};
}

void gemma3_defaults(ModelConfig& m) {
  shared_defaults(m);
  m.rotary_base = 1e6;
  m.rotary_base_local = 1e4;
  m.qk_layernorm = true;
  m.window_size = 1024;
  m.window_attn_skip_freq = {6};
}

}  // namespace

Family gemma2() {
  return {.model_type = "gemma2",
          .class_name = "Gemma2ForCausalLM",
          .keys = kGemma2Keys,
          .window = WindowRule::patterned,
          .window_pattern = 2,
          .defaults = gemma2_defaults,
          .rows = rows({kTrunk, kSandwichInputs, kOutputNorms, kAttention, kMlp}),
          .buffers = kRopeBuffers};
}

Family gemma3_text() {
  return {.model_type = "gemma3_text",
          .class_name = "Gemma3ForCausalLM",
          .keys = kGemma3Keys,
          .window = WindowRule::patterned,
          .window_pattern = 6,
          .rope = RopeRule::of_layer_types,
          .defaults = gemma3_defaults,
          .rows = rows({kTrunk, kSandwichInputs, kOutputNorms, kAttention, kHeadNorms, kMlp}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
