#include "plan/model_size.h"

#include <algorithm>

#include "recipe/schema/model.h"

namespace mtrain::plan {

Count ModelParameters::total() const {
  return Count(dense_layers) * dense.total() + Count(moe_layers) * moe.total() + token_table +
         output + position_table + final_norm;
}

Count ModelParameters::active() const {
  return Count(dense_layers) * dense.active + Count(moe_layers) * moe.active + token_table +
         output + position_table + final_norm;
}

namespace {

LayerParameters layer_parameters(const recipe::ModelConfig& m, bool moe) {
  const Count H = Count(m.hidden_size), D = Count(m.head_dim()),
              AD = Count(m.num_attention_heads) * D, qkv = AD + 2 * Count(m.kv_heads()) * D,
              inputs = m.gated() ? 2 : 1, experts = Count(m.moe.num_experts);
  const bool norm_bias = m.normalization == recipe::Normalization::layernorm && m.add_bias_linear;
  // Parameters of an MLP without the bias of its second projection, which is whole on every rank.
  const auto mlp = [&](Count F) { return (inputs + 1) * H * F + (m.fc_bias() ? inputs * F : 0); };
  LayerParameters p;
  const Count norms = m.norm_placement == recipe::NormPlacement::sandwich ? 4 : 2,
              KV = Count(m.kv_heads()) * D;
  p.split = H * qkv + (m.qkv_bias() ? qkv : 0) + AD * H;
  p.keys_values = (H + (m.qkv_bias() ? 1 : 0)) * (qkv - AD);
  p.replicated = norms * H * (norm_bias ? 2 : 1) + (m.proj_bias() ? H : 0) + (m.fc_bias() ? H : 0);
  if (m.qk_layernorm && m.qk_layernorm_all_heads)
    p.split += AD + KV, p.keys_values += KV;
  else if (m.qk_layernorm)
    p.replicated += 2 * D;
  if (moe) {
    p.expert = mlp(Count(m.moe.ffn_hidden_size.value_or(m.ffn_size())));
    p.experts = experts;
    p.replicated += H * experts;
    if (m.moe.shared_expert_ffn_hidden_size) {
      p.split += mlp(Count(*m.moe.shared_expert_ffn_hidden_size));
      if (m.moe.shared_expert_gate) p.replicated += H;
    }
  } else {
    p.split += mlp(Count(m.ffn_size()));
  }
  p.active = p.split + p.replicated + std::min(p.experts, Count(m.moe.router_topk)) * p.expert;
  return p;
}

}  // namespace

ModelParameters count_parameters(const recipe::ModelConfig& m, int64_t vocab) {
  ModelParameters p;
  p.dense = layer_parameters(m, false);
  p.moe = layer_parameters(m, true);
  for (int64_t i = 0; i < m.num_layers; ++i) ++(m.has_experts(i) ? p.moe_layers : p.dense_layers);
  const bool norm_bias = m.normalization == recipe::Normalization::layernorm && m.add_bias_linear;
  p.token_table = Count(vocab) * Count(m.hidden_size);
  p.output = m.share_embeddings_and_output_weights ? 0 : p.token_table;
  if (m.position_embedding == recipe::PositionEmbedding::learned)
    p.position_table = Count(m.max_position_embeddings.value_or(0)) * Count(m.hidden_size);
  p.final_norm = Count(m.hidden_size) * (norm_bias ? 2 : 1);
  return p;
}

TokenCost token_cost(const recipe::ModelConfig& m, int64_t vocab) {
  const ModelParameters p = count_parameters(m, vocab);
  int64_t windows = 0;
  for (int64_t layer = 0; layer < m.num_layers; ++layer) windows += m.has_window(layer) ? 1 : 0;
  const double layer = 12.0 * Count(m.num_attention_heads) * Count(m.head_dim());
  return {.matmul_flops = 6.0 * (p.active() - p.looked_up()),
          .attention_flops_per_position = layer * Count(m.num_layers - windows),
          .window_flops_per_position = layer * Count(windows),
          .window = m.window_size.value_or(0)};
}

}  // namespace mtrain::plan
