#include "train/model_setup.h"

#include "plan/layout.h"

namespace mtrain {

namespace {
RopeScaling rope_scaling(const RopeScalingConfig& c) {
  using Kind = RopeScaling::Kind;
  const Kind kind = c.type == RopeScalingType::linear   ? Kind::linear
                    : c.type == RopeScalingType::llama3 ? Kind::llama3
                                                        : Kind::none;
  return {kind, c.factor, c.low_freq_factor, c.high_freq_factor,
          c.original_max_position_embeddings};
}
}  // namespace

GptConfig gpt_config(const ModelConfig& m, int64_t vocab, int64_t seq_length, int64_t tp) {
  GptConfig c{};
  c.layers = m.num_layers;
  c.hidden = m.hidden_size;
  c.heads = m.num_attention_heads;
  c.kv_heads = m.kv_heads();
  c.head_dim = m.head_dim();
  c.ffn = m.ffn_size();
  c.vocab = vocab;
  c.padded_vocab = padded_vocab(vocab, tp);
  c.max_positions = m.max_position_embeddings.value_or(seq_length);
  c.norm = m.normalization == Normalization::rmsnorm ? ops::NormKind::rms : ops::NormKind::layer;
  c.norm_eps = float(m.norm_epsilon);
  c.rotary = m.position_embedding == PositionEmbedding::rope;
  c.rotary_base = m.rotary_base;
  c.rope_scaling = rope_scaling(m.rope_scaling);
  c.gated_mlp = m.gated();
  c.qkv_bias = m.qkv_bias();
  c.linear_bias = m.add_bias_linear;
  c.qk_norm = m.qk_layernorm;
  c.tied_embeddings = m.share_embeddings_and_output_weights;
  c.window = m.window_size.value_or(0);
  c.hidden_dropout = float(m.hidden_dropout);
  c.embedding_dropout = float(m.embedding_dropout);
  c.init_std = float(m.init_method_std);
  return c;
}

Recompute recompute_policy(const RecomputeConfig& r, int64_t layers) {
  Recompute policy;
  if (r.granularity == RecomputeGranularity::selective) policy.attention_core = true;
  if (r.granularity == RecomputeGranularity::full) {
    const int64_t n = r.num_layers.value_or(1);
    const bool block = r.method == RecomputeMethod::block;
    policy.group = block ? 1 : n;
    policy.layers = block && r.num_layers ? n : layers;
  }
  return policy;
}

}  // namespace mtrain
