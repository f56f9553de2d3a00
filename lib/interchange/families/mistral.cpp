// Mistral, and Mixtral, its mixture of experts (Jiang et al. 2023, 2024).
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kMistralKeys[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "14336"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "8"},     {"head_dim", ""},
    {"vocab_size", "32000"},          {"max_position_embeddings", "131072"},
    {"rms_norm_eps", "1.0e-6"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"sliding_window", "4096"},
    {"tie_word_embeddings", "false"}, {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr FamilyKey kMixtralKeys[] = {
    {"hidden_size", "4096"},          {"intermediate_size", "14336"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "8"},     {"head_dim", ""},
    {"vocab_size", "32000"},          {"max_position_embeddings", "131072"},
    {"rms_norm_eps", "1.0e-5"},       {"rope_theta", "1000000"},
    {"hidden_act", "silu"},           {"sliding_window", ""},
    {"tie_word_embeddings", "false"}, {"num_local_experts", "8"},
    {"num_experts_per_tok", "2"},     {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr TensorRow kMixtralExperts[] = {
    {"layers.{l}.mlp.router.weight", "layers.{l}.block_sparse_moe.gate.weight"},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
     Rows::gate},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
     Rows::up},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.block_sparse_moe.experts.{e}.w2.weight"}};

// transformers 5 computes with one tensor for all experts of a layer.
constexpr TensorRow kFusedMixtral[] = {
    {"layers.{l}.mlp.router.weight", "layers.{l}.mlp.gate.weight"},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.gate_up_proj"},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.mlp.experts.down_proj"}};

void mistral_defaults(ModelConfig& m) { m.rotary_base = 1e6; }

void mixtral_defaults(ModelConfig& m) {
  mistral_defaults(m);
  m.moe.required_by_family = true;
}

}  // namespace

Family mistral() {
  return {.model_type = "mistral",
          .class_name = "MistralForCausalLM",
          .config_class = "MistralConfig",
          .bridge_name = "Mistral",
          .keys = kMistralKeys,
          .window = WindowRule::every_layer,
          .defaults = mistral_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp}),
          .buffers = kRopeBuffers};
}

Family mixtral() {
  return {.model_type = "mixtral",
          .class_name = "MixtralForCausalLM",
          .config_class = "MixtralConfig",
          .bridge_name = "Mixtral",
          .keys = kMixtralKeys,
          .window = WindowRule::every_layer,
          .defaults = mixtral_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMixtralExperts}),
          .fused = rows({kFusedMixtral}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
