#include "train/model_setup.h"

#include "base/error.h"
#include "plan/layout.h"

namespace mtrain::train {

namespace {
model::RopeScaling::Kind rope_kind(plan::RopeShape::Scaling scaling) {
  using Kind = model::RopeScaling::Kind;
  switch (scaling) {
    case plan::RopeShape::Scaling::none: return Kind::none;
    case plan::RopeShape::Scaling::linear: return Kind::linear;
    case plan::RopeShape::Scaling::llama3: return Kind::llama3;
    case plan::RopeShape::Scaling::yarn: return Kind::yarn;
    case plan::RopeShape::Scaling::longrope: return Kind::longrope;
  }
  throw BugError("a scaling of rotary positions");
}

model::RopeScaling rope_scaling(const plan::RopeShape& r) {
  return {.kind = rope_kind(r.scaling),
          .factor = r.factor,
          .low_freq_factor = r.low_freq_factor,
          .high_freq_factor = r.high_freq_factor,
          .original_positions = r.original_positions,
          .beta_fast = r.beta_fast,
          .beta_slow = r.beta_slow,
          .truncate = r.truncate,
          .attention_factor = r.attention_factor,
          .lane_factors = r.lane_factors,
          .most_positions = r.most_positions};
}

model::RoutePattern route_pattern(plan::ExpertShape::Pattern pattern) {
  switch (pattern) {
    case plan::ExpertShape::Pattern::none: return model::RoutePattern::none;
    case plan::ExpertShape::Pattern::balanced: return model::RoutePattern::balanced;
    case plan::ExpertShape::Pattern::zipf: return model::RoutePattern::zipf;
  }
  throw BugError("a pattern of routes");
}

model::ExpertConfig expert_config(const plan::ExpertShape& e) {
  model::ExpertConfig c;
  c.count = e.count;
  c.per_token = e.per_token;
  c.ffn = e.ffn;
  c.shared_ffn = e.shared_ffn;
  c.shared_gate = e.shared_gate;
  c.layers = e.layers;
  c.form = {.score = e.sigmoid ? ops::RouterScore::sigmoid : ops::RouterScore::softmax,
            .over_chosen = e.over_chosen,
            .normalize = e.normalize,
            .scale = float(e.scale),
            .groups = e.groups,
            .best_groups = e.best_groups};
  c.pattern = route_pattern(e.pattern);
  c.logits = e.logits;
  c.loss_coeffs = {.batch = float(e.batch_coeff),
                   .sample = float(e.sample_coeff),
                   .global = float(e.global_coeff),
                   .z = float(e.z_coeff)};
  c.capacity_factor = e.capacity_factor;
  c.drops_lightest = e.drops_lightest;
  return c;
}
}  // namespace

model::GptConfig gpt_config(const plan::ModelShape& m, int64_t tp) {
  model::GptConfig c{};
  c.layers = m.layers;
  c.hidden = m.hidden;
  c.heads = m.heads;
  c.kv_heads = m.kv_heads;
  c.head_dim = m.head_dim;
  c.ffn = m.ffn;
  c.vocab = m.vocab;
  c.padded_vocab = plan::padded_vocab(m.vocab, tp);
  c.max_positions = m.max_positions;
  c.norm = m.rms_norm ? ops::NormKind::rms : ops::NormKind::layer;
  c.norm_eps = float(m.norm_eps);
  c.input_norms = m.input_norms;
  c.output_norms = m.output_norms;
  c.norm_plus_one = m.norm_plus_one;
  c.rotary = m.rotary;
  c.rotary_dim = m.rope.dims;
  c.rotary_base = m.rope.base;
  c.rope_scaling = rope_scaling(m.rope);
  c.rope_layers = m.rope_layers;
  c.local_rotary_base = m.local_rotary_base;
  c.gated_mlp = m.gated_mlp;
  c.gelu_gate = m.gelu_gate;
  c.gelu_tanh = m.gelu_tanh;
  c.qkv_bias = m.qkv_bias;
  c.proj_bias = m.proj_bias;
  c.linear_bias = m.linear_bias;
  c.qk_norm = m.qk_norm;
  c.qk_norm_all_heads = m.qk_norm_all_heads;
  c.score_scale = float(m.score_scale);
  c.score_cap = float(m.score_cap);
  c.logit_cap = float(m.logit_cap);
  c.embedding_scale = float(m.embedding_scale);
  c.tied_embeddings = m.tied_embeddings;
  c.window = m.window;
  c.window_layers = m.window_layers;
  c.hidden_dropout = float(m.hidden_dropout);
  c.embedding_dropout = float(m.embedding_dropout);
  c.init_std = float(m.init_std);
  c.experts = expert_config(m.experts);
  return c;
}

model::GptConfig gpt_config(const RunPlan& plan) { return gpt_config(plan.model, plan.layout.tp); }

model::Recompute recompute_policy(const plan::RecomputeOptions& r) {
  return {.attention_core = r.attention_core,
          .norms = r.norms,
          .mlp = r.mlp,
          .experts = r.experts,
          .experts_act = r.experts_act,
          .shared_expert = r.shared_expert,
          .cheap = r.cheap,
          .group = r.group,
          .layers = r.layers,
          .keeps_router = r.keeps_router};
}

}  // namespace mtrain::train
