// Mixture-of-experts models of Qwen 2 and 3. Those of Qwen 2 have a shared expert with a gate.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

constexpr FamilyKey kQwen2MoeKeys[] = {{"hidden_size", "2048"},
                                       {"intermediate_size", "5632"},
                                       {"num_hidden_layers", "24"},
                                       {"num_attention_heads", "16"},
                                       {"num_key_value_heads", "16"},
                                       {"head_dim", ""},
                                       {"vocab_size", "151936"},
                                       {"max_position_embeddings", "32768"},
                                       {"rms_norm_eps", "1.0e-6"},
                                       {"rope_theta", "10000"},
                                       {"hidden_act", "silu"},
                                       {"qkv_bias", "true"},
                                       {"tie_word_embeddings", "false"},
                                       {"num_experts", "60"},
                                       {"num_experts_per_tok", "4"},
                                       {"moe_intermediate_size", "1408"},
                                       {"shared_expert_intermediate_size", "5632"},
                                       {"norm_topk_prob", "false"},
                                       {"decoder_sparse_step", "1"},
                                       {"mlp_only_layers", ""},
                                       {"initializer_range", "0.02"},
                                       {"attention_dropout", "0.0"}};

constexpr FamilyKey kQwen3MoeKeys[] = {
    {"hidden_size", "2048"},          {"intermediate_size", "6144"},
    {"num_hidden_layers", "24"},      {"num_attention_heads", "32"},
    {"num_key_value_heads", "4"},     {"head_dim", ""},
    {"vocab_size", "151936"},         {"max_position_embeddings", "32768"},
    {"rms_norm_eps", "1.0e-6"},       {"rope_theta", "10000"},
    {"hidden_act", "silu"},           {"attention_bias", "false"},
    {"tie_word_embeddings", "false"}, {"num_experts", "128"},
    {"num_experts_per_tok", "8"},     {"moe_intermediate_size", "768"},
    {"norm_topk_prob", "false"},      {"decoder_sparse_step", "1"},
    {"mlp_only_layers", ""},          {"initializer_range", "0.02"},
    {"attention_dropout", "0.0"}};

constexpr TensorRow kSharedExpert[] = {
    {"layers.{l}.mlp.shared_expert.gate.weight", "layers.{l}.mlp.shared_expert_gate.weight"},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", "layers.{l}.mlp.shared_expert.gate_proj.weight",
     Rows::gate},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", "layers.{l}.mlp.shared_expert.up_proj.weight",
     Rows::up},
    {"layers.{l}.mlp.shared_expert.down.weight", "layers.{l}.mlp.shared_expert.down_proj.weight"}};

void qwen2_moe_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 1e6;
  m.add_qkv_bias = true;
  m.moe.required_by_family = true;
  m.moe.router_pre_softmax = true;
  m.moe.norm_topk_prob = false;
  m.moe.shared_expert_gate = true;
}

void qwen3_moe_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.rotary_base = 1e6;
  m.qk_layernorm = true;
  m.moe.required_by_family = true;
}

}  // namespace

Family qwen2_moe() {
  return {.model_type = "qwen2_moe",
          .class_name = "Qwen2MoeForCausalLM",
          .config_class = "Qwen2MoeConfig",
          .bridge_name = "Qwen2MoE",
          .keys = kQwen2MoeKeys,
          .window = WindowRule::alternating,
          .defaults = qwen2_moe_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kMlp, kExperts, kSharedExpert}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers};
}

Family qwen3_moe() {
  return {.model_type = "qwen3_moe",
          .class_name = "Qwen3MoeForCausalLM",
          .config_class = "Qwen3MoeConfig",
          .bridge_name = "Qwen3MoE",
          .keys = kQwen3MoeKeys,
          .window = WindowRule::switched,
          .defaults = qwen3_moe_defaults,
          .rows = rows({kTrunk, kInputNorms, kAttention, kHeadNorms, kMlp, kExperts}),
          .fused = rows({kFusedExperts}),
          .buffers = kRopeBuffers};
}

}  // namespace mtrain::interchange
