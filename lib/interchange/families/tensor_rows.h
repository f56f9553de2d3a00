// Rows of the tensor map that several families share, and a function that joins them.
#pragma once
#include <initializer_list>
#include <span>
#include <vector>

#include "interchange/families.h"

namespace mtrain::interchange {

inline constexpr TensorRow kTrunk[] = {
    {"embedding.weight", "embed_tokens.weight"},
    {"layers.{l}.attention.proj.weight", "layers.{l}.self_attn.o_proj.weight"},
    {"layers.{l}.attention.proj.bias", "layers.{l}.self_attn.o_proj.bias"},
    {"final_norm.weight", "norm.weight"},
    {"output.weight", "lm_head.weight"}};

inline constexpr TensorRow kInputNorms[] = {
    {"layers.{l}.attention.norm.weight", "layers.{l}.input_layernorm.weight"},
    {"layers.{l}.mlp.norm.weight", "layers.{l}.post_attention_layernorm.weight"}};

// Here post_attention_layernorm is the norm of attention's output; above, that of the MLP's input.
inline constexpr TensorRow kOutputNorms[] = {
    {"layers.{l}.attention.out_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
    {"layers.{l}.mlp.out_norm.weight", "layers.{l}.post_feedforward_layernorm.weight"}};

inline constexpr TensorRow kAttention[] = {
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.q_proj.weight", Rows::query},
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.k_proj.weight", Rows::key},
    {"layers.{l}.attention.qkv.weight", "layers.{l}.self_attn.v_proj.weight", Rows::value},
    {"layers.{l}.attention.qkv.bias", "layers.{l}.self_attn.q_proj.bias", Rows::query},
    {"layers.{l}.attention.qkv.bias", "layers.{l}.self_attn.k_proj.bias", Rows::key},
    {"layers.{l}.attention.qkv.bias", "layers.{l}.self_attn.v_proj.bias", Rows::value}};

inline constexpr TensorRow kHeadNorms[] = {
    {"layers.{l}.attention.q_norm.weight", "layers.{l}.self_attn.q_norm.weight"},
    {"layers.{l}.attention.k_norm.weight", "layers.{l}.self_attn.k_norm.weight"}};

inline constexpr TensorRow kMlp[] = {
    {"layers.{l}.mlp.gate_up.weight", "layers.{l}.mlp.gate_proj.weight", Rows::gate},
    {"layers.{l}.mlp.gate_up.weight", "layers.{l}.mlp.up_proj.weight", Rows::up},
    {"layers.{l}.mlp.down.weight", "layers.{l}.mlp.down_proj.weight"}};

inline constexpr TensorRow kMlpBiases[] = {
    {"layers.{l}.mlp.gate_up.bias", "layers.{l}.mlp.gate_proj.bias", Rows::gate},
    {"layers.{l}.mlp.gate_up.bias", "layers.{l}.mlp.up_proj.bias", Rows::up},
    {"layers.{l}.mlp.down.bias", "layers.{l}.mlp.down_proj.bias"}};

inline constexpr TensorRow kExperts[] = {
    {"layers.{l}.mlp.router.weight", "layers.{l}.mlp.gate.weight"},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.{e}.gate_proj.weight",
     Rows::gate},
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.{e}.up_proj.weight",
     Rows::up},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.mlp.experts.{e}.down_proj.weight"}};

// In transformers, the router's selection biases are a buffer.
inline constexpr TensorRow kRouterBias[] = {
    {"layers.{l}.mlp.router.bias", "layers.{l}.mlp.gate.e_score_correction_bias"}};

// The shared expert of DeepSeek's families.
inline constexpr TensorRow kSharedExperts[] = {
    {"layers.{l}.mlp.shared_expert.gate_up.weight",
     "layers.{l}.mlp.shared_experts.gate_proj.weight", Rows::gate},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", "layers.{l}.mlp.shared_experts.up_proj.weight",
     Rows::up},
    {"layers.{l}.mlp.shared_expert.down.weight", "layers.{l}.mlp.shared_experts.down_proj.weight"}};

// The further tensors of a layer of multi-token prediction, and its copies of what it shares with
// the model.
inline constexpr TensorRow kPrediction[] = {
    {"layers.{l}.mtp.embedding_norm.weight", "layers.{l}.enorm.weight"},
    {"layers.{l}.mtp.hidden_norm.weight", "layers.{l}.hnorm.weight"},
    {"layers.{l}.mtp.proj.weight", "layers.{l}.eh_proj.weight"},
    {"layers.{l}.mtp.final_norm.weight", "layers.{l}.shared_head.norm.weight"}};
inline constexpr TensorRow kPredictionCopies[] = {
    {"embedding.weight", "layers.{l}.embed_tokens.weight"},
    {"output.weight", "layers.{l}.shared_head.head.weight"}};

// transformers 5 computes with one tensor for all experts of a layer.
inline constexpr TensorRow kFusedExperts[] = {
    {"layers.{l}.mlp.experts.gate_up.weight", "layers.{l}.mlp.experts.gate_up_proj"},
    {"layers.{l}.mlp.experts.down.weight", "layers.{l}.mlp.experts.down_proj"}};

// Returns the rows of all tables.
inline std::vector<TensorRow> rows(std::initializer_list<std::span<const TensorRow>> tables) {
  std::vector<TensorRow> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

// Buffers that older versions of transformers wrote beside the weights of most families.
inline constexpr std::string_view kRopeBuffers[] = {".rotary_emb.inv_freq"};

}  // namespace mtrain::interchange
