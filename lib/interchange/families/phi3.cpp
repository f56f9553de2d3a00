// Phi-3 (Abdin et al. 2024).
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kPhi3Keys[] = {
    {"hidden_size", "3072"},          {"intermediate_size", "8192"},
    {"num_hidden_layers", "32"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", ""},      {"head_dim", ""},
    {"vocab_size", "32064"},          {"max_position_embeddings", "4096"},
    {"rms_norm_eps", "1.0e-5"},       {"rope_theta", "10000"},
    {"partial_rotary_factor", "1.0"}, {"hidden_act", "silu"},
    {"sliding_window", ""},           {"tie_word_embeddings", "false"},
    {"initializer_range", "0.02"},    {"attention_dropout", "0.0"},
    {"resid_pdrop", "0.0"},           {"embd_pdrop", "0.0"}};

// Phi-3 stacks queries, keys and values, and the gate and up projections, in mtrain's order.
constexpr TensorRow kStacked[] = {
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.qkv_proj.weight"},
    {"layers.{l}.mlp.gate_up.weight", "layers.{l}.mlp.gate_up_proj.weight"},
    {"layers.{l}.mlp.down.weight", "layers.{l}.mlp.down_proj.weight"}};

}  // namespace

Family phi3() {
  return {.model_type = "phi3",
          .class_name = "Phi3ForCausalLM",
          .keys = kPhi3Keys,
          .window = WindowRule::every_layer,
          .rope = RopeRule::phi3,
          .rows = rows({kTrunk, kInputNorms, kStacked}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
