#include "recipe/model_spec.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "recipe/schema/model.h"

namespace mtrain::recipe {

namespace {

// Return whether a layer, counted from 0, has experts, rotary positions, or the window. The rules
// refuse a frequency of 0 for experts, and lists with neither 1 item nor one per layer.
bool has_experts(const MoeConfig& moe, int64_t layer) {
  if (moe.num_experts == 0 || layer < moe.first_dense_layers) return false;
  if (std::ranges::count(moe.dense_layers, layer) > 0) return false;
  if (moe.sparse_step && (layer + 1) % *moe.sparse_step != 0) return false;
  const std::vector<int64_t>& freq = moe.layer_freq;
  if (freq.size() == 1) return layer % std::max<int64_t>(1, freq[0]) == 0;
  return layer < int64_t(freq.size()) && freq[size_t(layer)] != 0;
}

// Whether a layer is one of those that a frequency n selects: n - 1, 2 n - 1, ...
bool every_nth(int64_t n, int64_t layer) { return n > 0 && (layer + 1) % n == 0; }

bool has_rope(const ModelConfig& m, int64_t layer) {
  if (m.position_embedding != PositionEmbedding::rope) return false;
  if (m.no_rope_freq.size() == 1) return !every_nth(m.no_rope_freq[0], layer);
  return layer >= int64_t(m.no_rope_freq.size()) || m.no_rope_freq[size_t(layer)] == 0;
}

bool has_window(const ModelConfig& m, int64_t layer) {
  if (!m.window_size) return false;
  const std::vector<int64_t>& skips = m.window_attn_skip_freq;
  if (skips.size() == 1) return !every_nth(skips[0], layer);
  return layer >= int64_t(skips.size()) || skips[size_t(layer)] != 0;
}

// Returns the settings that this type of scaling has.
spec::RopeScaling rope_scaling(const ModelConfig& m, int64_t sample_length) {
  const RopeScalingConfig& s = m.rope_scaling;
  const int64_t original = s.original_max_position_embeddings;
  const auto attention_factor = [&] {
    return s.attention_scale(m.max_position_embeddings.value_or(sample_length));
  };
  switch (s.type) {
    case RopeScalingType::none: return {};
    case RopeScalingType::linear: return {.type = s.type, .factor = s.factor};
    case RopeScalingType::llama3:
      return {.type = s.type,
              .factor = s.factor,
              .low_freq_factor = s.low_freq_factor,
              .high_freq_factor = s.high_freq_factor,
              .original_positions = original};
    case RopeScalingType::yarn:
      return {.type = s.type,
              .factor = s.factor,
              .original_positions = original,
              .beta_fast = s.beta_fast,
              .beta_slow = s.beta_slow,
              .truncate = s.truncate,
              .attention_factor = attention_factor()};
    case RopeScalingType::longrope:
      return {.type = s.type,
              .original_positions = original,
              .attention_factor = attention_factor(),
              .lane_factors = s.lane_factors(sample_length),
              .valid_positions = sample_length <= original ? original : 0};
  }
  throw BugError("a type of scaled positions");
}

// Layers with a window may have a different rotary base, without scaling (Gemma 3).
spec::Rotary rotary(const ModelConfig& m, int64_t layer, int64_t sample_length) {
  if (!has_rope(m, layer)) return {};
  if (has_window(m, layer) && m.rotary_base_local.value_or(0) > 0)
    return {.dims = m.rotary_dim(), .base = *m.rotary_base_local};
  return {.dims = m.rotary_dim(), .base = m.rotary_base, .scaling = rope_scaling(m, sample_length)};
}

spec::HeadNorm head_norm(const ModelConfig& m) {
  if (!m.qk_layernorm || m.multi_latent_attention) return spec::HeadNorm::none;
  return m.qk_layernorm_all_heads ? spec::HeadNorm::all_heads : spec::HeadNorm::each_head;
}

// With latent attention and yarn, scores are multiplied by the square of this factor.
double yarn_score_factor(const ModelConfig& m) {
  const RopeScalingConfig& s = m.rope_scaling;
  if (!m.multi_latent_attention || s.type != RopeScalingType::yarn || s.factor <= 1) return 1;
  return 0.1 * s.mscale_all_dim.value_or(0) * std::log(s.factor) + 1;
}

float score_scale(const ModelConfig& m) {
  const double factor = yarn_score_factor(m);
  if (m.attention_multiplier) return float(*m.attention_multiplier * factor * factor);
  if (!m.query_pre_attn_scalar && factor == 1) return 0;
  const double scalar = m.query_pre_attn_scalar.value_or(double(m.head_dim()));
  return float(factor * factor / std::sqrt(scalar));
}

std::optional<spec::LatentProjections> latent_projections(const ModelConfig& m) {
  if (!m.multi_latent_attention) return {};
  return spec::LatentProjections{.q_rank = m.q_lora_rank.value_or(0),
                                 .kv_rank = m.kv_lora_rank,
                                 .rope_dim = m.qk_rope_head_dim};
}

spec::GroupedAttention attention(const ModelConfig& m, int64_t layer, int64_t sample_length) {
  return {.heads = m.num_attention_heads,
          .kv_heads = m.kv_heads(),
          .head_dim = m.head_dim(),
          .window = has_window(m, layer) ? *m.window_size : 0,
          .rotary = rotary(m, layer, sample_length),
          .head_norm = head_norm(m),
          .score_scale = score_scale(m),
          .score_cap = m.attn_logit_softcapping.value_or(0),
          .qkv_bias = m.qkv_bias(),
          .proj_bias = m.proj_bias(),
          .value_head_dim = m.multi_latent_attention ? m.v_head_dim : 0,
          .latent = latent_projections(m)};
}

// Returns the sum of the coefficients of one kind of balance loss. A single coefficient applies to
// all kinds.
double balance_coeff(const MoeConfig& moe, LoadBalancing kind) {
  double sum = 0;
  for (size_t i = 0; i < moe.load_balancing_type.size(); ++i)
    if (moe.load_balancing_type[i] == kind)
      sum += moe.aux_loss_coeff[moe.aux_loss_coeff.size() == 1 ? 0 : i];
  return sum;
}

RouterForm router_form(const MoeConfig& moe) {
  return {.score = moe.router_score,
          .over_chosen = moe.router_score == RouterScore::softmax && !moe.router_pre_softmax,
          // A single weight would be normalized to 1, and the router would not learn.
          .normalize = moe.norm_topk_prob && moe.router_topk > 1,
          .scale = float(moe.router_topk_scaling_factor),
          .groups = moe.num_groups.value_or(1),
          .best_groups = moe.group_topk.value_or(1),
          .group_experts = moe.group_score_topk.value_or(0)};
}

spec::Experts experts(const ModelConfig& m) {
  const MoeConfig& moe = m.moe;
  const int64_t shared_ffn = moe.shared_expert_ffn_hidden_size.value_or(0);
  return {.count = moe.num_experts,
          .per_token = moe.router_topk,
          .ffn = moe.ffn_hidden_size.value_or(m.ffn_size()),
          .shared_ffn = shared_ffn,
          .shared_gate = moe.shared_expert_gate && shared_ffn > 0,
          .activation = m.activation,
          .form = router_form(moe),
          .logits = element_dtype(moe.router_dtype),
          .loss_coeffs = {.batch = float(balance_coeff(moe, LoadBalancing::aux_loss)),
                          .sample = float(balance_coeff(moe, LoadBalancing::seq_aux_loss)),
                          .global = float(balance_coeff(moe, LoadBalancing::global_aux_loss)),
                          .z = float(moe.z_loss_coeff)},
          .bias = moe.has_router_bias(),
          .bias_rate = moe.router_bias_update_rate,
          .capacity_factor = moe.expert_capacity_factor.value_or(0),
          .drops_lightest = moe.token_drop_policy == TokenDropPolicy::probs};
}

}  // namespace

spec::ModelSpec model_spec(const ModelConfig& m, int64_t vocab, int64_t sample_length) {
  spec::ModelSpec s{.hidden = m.hidden_size,
                    .vocab = vocab,
                    .max_positions = m.max_position_embeddings.value_or(sample_length),
                    .learned_positions = m.position_embedding == PositionEmbedding::learned,
                    .norm = {.kind = m.normalization,
                             .eps = m.norm_epsilon,
                             .plus_one = m.layernorm_zero_centered_gamma,
                             .bias = m.normalization == NormKind::layer && m.fc_bias()},
                    .layers = {},
                    .tied_embeddings = m.share_embeddings_and_output_weights,
                    .embedding_scale = float(m.embedding_multiplier),
                    .residual_scale = float(m.residual_multiplier),
                    .logit_scale = float(1 / m.logits_scaling),
                    .logit_cap = m.final_logit_softcapping.value_or(0),
                    .hidden_dropout = m.hidden_dropout,
                    .embedding_dropout = m.embedding_dropout,
                    .init_std = m.init_method_std};
  for (int64_t i = 0; i < m.num_layers; ++i) {
    spec::LayerSpec layer{.input_norms = m.norm_placement != NormPlacement::post,
                          .output_norms = m.norm_placement != NormPlacement::pre,
                          .attention = attention(m, i, sample_length)};
    if (has_experts(m.moe, i))
      layer.mlp = experts(m);
    else
      layer.mlp =
          spec::DenseMlp{.ffn = m.ffn_size(), .activation = m.activation, .bias = m.fc_bias()};
    s.layers.push_back(std::move(layer));
  }
  s.mtp = {.depths = m.mtp_num_layers,
           .repeated = m.mtp_num_layers > 0 && m.mtp_use_repeated_layer,
           .loss_factor = m.mtp_num_layers > 0 ? float(m.mtp_loss_scaling_factor) : 0};
  for (int64_t k = 0; k < s.mtp.layers(); ++k)
    s.layers.push_back(spec::LayerSpec(s.layers[size_t(m.num_layers - 1)]));
  return s;
}

spec::ModelSpec model_spec(const ModelConfig& m) {
  return model_spec(m, m.vocab_size, m.max_position_embeddings.value_or(0));
}

}  // namespace mtrain::recipe
