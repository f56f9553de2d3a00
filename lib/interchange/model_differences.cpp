#include "interchange/model_differences.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"
#include "recipe/model_spec.h"
#include "recipe/schema/schema.h"

namespace mtrain::interchange {

namespace {

using recipe::ModelConfig;

// What the model computes for short samples, and for long ones if their length matters: the factors
// of longrope depend on it.
using Models = std::vector<spec::ModelSpec>;

Models models_of(const ModelConfig& m) {
  const auto at = [&](int64_t sample_length) {
    return spec::without_training(recipe::model_spec(m, m.vocab_size, sample_length));
  };
  Models models{at(1)};
  if (std::ranges::any_of(models[0].layers, [](const spec::LayerSpec& layer) {
        return layer.grouped().rotary.scaling.type == recipe::RopeScalingType::longrope;
      }))
    models.push_back(at(std::numeric_limits<int64_t>::max()));
  return models;
}

double query_scalar(const ModelConfig& m) {
  if (const auto& scale = m.attention_multiplier) return 1 / (*scale * *scale);
  return m.query_pre_attn_scalar.value_or(double(m.head_dim()));
}

}  // namespace

std::string ModelDifference::text() const {
  return fmt::format("{}: {}, not {}", setting, in_a, in_b);
}

ModelConfig in_one_form(const ModelConfig& model) {
  ModelConfig m = model;
  m.attention_bias = model.proj_bias();
  m.add_qkv_bias = model.qkv_bias();
  m.mlp_bias = model.fc_bias();
  m.add_bias_linear = false;
  m.query_pre_attn_scalar = query_scalar(model);
  m.attention_multiplier.reset();
  const bool scaled = m.rope_scaling.type != recipe::RopeScalingType::none;
  if (!m.rotary_base_local && !scaled) m.rotary_base_local = m.rotary_base;
  recipe::MoeConfig& moe = m.moe;
  moe.dense_layers.clear();
  const spec::ModelSpec layers = recipe::model_spec(model);
  for (int64_t l = 0; moe.num_experts > 0 && l < m.num_layers; ++l)
    if (!layers.layer(l).experts()) moe.dense_layers.push_back(l);
  moe.layer_freq = {1}, moe.sparse_step = 1, moe.first_dense_layers = 0;
  moe.num_groups = moe.num_groups.value_or(1);
  moe.group_topk = moe.group_topk.value_or(1);
  // If all groups are chosen, their scores do not matter.
  const bool ranked = *moe.group_topk < *moe.num_groups;
  const int64_t scores =
      moe.group_score_topk.value_or(std::max<int64_t>(1, moe.router_topk / *moe.group_topk));
  moe.group_score_topk.reset();
  if (ranked) moe.group_score_topk = std::min(scores, moe.num_experts / *moe.num_groups);
  // A softmax over a token's experts is a softmax over all experts whose weights are then
  // normalized.
  const bool softmax = moe.router_score == RouterScore::softmax;
  moe.norm_topk_prob = moe.norm_topk_prob || (softmax && !moe.router_pre_softmax);
  moe.router_pre_softmax = softmax && !moe.norm_topk_prob;
  return m;
}

// Changes one model into the other, setting by setting. The settings whose change changes what is
// computed are the difference.
std::vector<ModelDifference> model_differences(const ModelConfig& a, const ModelConfig& b) {
  recipe::Recipe changing, end;
  changing.model = in_one_form(a), end.model = in_one_form(b);
  Models before = models_of(changing.model);
  std::vector<ModelDifference> differences;
  if (before == models_of(end.model)) return differences;
  for (const recipe::SchemaRow& row : recipe::schema_rows()) {
    if (!row.path.starts_with("model.")) continue;
    const std::string in_a = row.show(changing), in_b = row.show(end);
    if (in_a == in_b) continue;
    row.ops->copy(row.at(changing), row.at(end));
    Models after = models_of(changing.model);
    if (after != before) differences.push_back({row.path, in_a, in_b});
    before = std::move(after);
  }
  MT_CHECK(!differences.empty(), "two models differ, but none of their settings do");
  return differences;
}

}  // namespace mtrain::interchange
