#include "plan/model_size.h"

#include <algorithm>

#include "spec/tensors.h"

namespace mtrain::plan {

Count ModelParameters::total() const {
  return Count(dense_layers) * dense.total() + Count(moe_layers) * moe.total() + token_table +
         output + position_table + final_norm + mtp + adapters;
}

ModelParameters ModelParameters::with_vocabulary(int64_t from, int64_t to) const {
  ModelParameters p = *this;
  for (Count* table : {&p.token_table, &p.output}) *table = *table / Count(from) * Count(to);
  return p;
}

Count ModelParameters::active() const {
  return Count(dense_layers) * dense.active + Count(moe_layers) * moe.active + token_table +
         output + position_table + final_norm + mtp;
}

namespace {

// Sizes may be mistyped, and their products may then exceed an int64_t.
Count count(const Shape& shape) {
  Count n = 1;
  for (int i = 0; i < shape.rank(); ++i) n *= Count(shape[i]);
  return n;
}

// Adds a tensor of a layer to the layer's counts.
void add(const spec::TensorSpec& t, LayerParameters& p) {
  const Count n = count(t.full_shape);
  if (t.split.experts) {
    p.experts = Count(t.full_shape[0]);
    p.expert += n / p.experts;
  } else if (t.split.dim == spec::TensorSplit::Dim::none) {
    p.replicated += n;
  } else {
    p.split += n;
    for (const spec::RowSection& s : t.split.sections)
      if (s.rows == spec::Rows::key || s.rows == spec::Rows::value)
        p.keys_values += n / Count(t.full_shape[0]) * Count(s.count());
  }
}

// Whether a layer without multi-token prediction lacks the tensor.
bool is_of_prediction(const spec::TensorSpec& t) {
  return t.name.find(".mtp.") != std::string::npos;
}

LayerParameters layer_parameters(const spec::ModelSpec& m, int64_t layer) {
  LayerParameters p;
  for (const spec::TensorSpec& t : spec::layer_tensors(m, layer))
    if (t.role != TensorRole::state && !t.adapter && !is_of_prediction(t)) add(t, p);
  const spec::Experts* experts = m.layer(layer).experts();
  p.active = p.split + p.replicated + (experts ? Count(experts->per_token) * p.expert : 0);
  return p;
}

}  // namespace

AdapterParameters adapter_parameters(const spec::ModelSpec& m, int64_t layer, int64_t tp,
                                     int64_t expert_tp, int64_t ep) {
  AdapterParameters all;
  if (!m.lora) return all;
  for (const spec::TensorSpec& t : spec::layer_tensors(m, layer)) {
    if (!t.adapter) continue;
    const bool divided = t.split.dim != spec::TensorSplit::Dim::none;
    const Count n = count(t.full_shape);
    if (t.split.experts)
      all.experts += n / (divided ? Count(expert_tp) : 1) / Count(ep);
    else
      all.dense += n / (divided ? Count(tp) : 1);
  }
  return all;
}

ModelParameters count_parameters(const spec::ModelSpec& m, int64_t vocab) {
  ModelParameters p;
  for (int64_t i = 0; i < m.layer_count(); ++i) {
    const bool moe = m.layer(i).experts();
    int64_t& layers = moe ? p.moe_layers : p.dense_layers;
    if (layers++ == 0) (moe ? p.moe : p.dense) = layer_parameters(m, i);
  }
  for (int64_t i = m.main_layers(); i < m.layer_count(); ++i)
    for (const spec::TensorSpec& t : spec::layer_tensors(m, i))
      if (is_of_prediction(t)) p.mtp += count(t.full_shape);
  if (m.lora)
    for (int64_t i = 0; i < m.layer_count(); ++i)
      p.adapters += adapter_parameters(m, i, 1, 1, 1).all();
  for (const spec::TensorSpec& t : spec::embedding_tensors(m))
    if (t.split.padded)
      p.token_table = Count(vocab) * Count(m.hidden);
    else
      p.position_table += count(t.full_shape);
  for (const spec::TensorSpec& t : spec::output_tensors(m))
    if (t.split.padded)
      p.output = Count(vocab) * Count(m.hidden);
    else
      p.final_norm += count(t.full_shape);
  return p;
}

TokenCost token_cost(const spec::ModelSpec& m) {
  const ModelParameters p = count_parameters(m, m.vocab);
  // A frozen weight needs no gradient, which is a third of the work.
  const double per_weight = m.lora ? 4 : 6;
  Count adapters = 0;  // those that a token uses
  for (int64_t i = 0; m.lora && i < m.layer_count(); ++i) {
    const AdapterParameters a = adapter_parameters(m, i, 1, 1, 1);
    const spec::Experts* e = m.layer(i).experts();
    adapters += a.dense + (e ? a.experts * Count(e->per_token) / Count(e->count) : 0);
  }
  TokenCost cost{.matmul_flops = per_weight * (p.active() - p.looked_up()) + 6.0 * adapters};
  // Each depth of multi-token prediction uses the output layer once more; those of a repeated layer
  // use the layer, too.
  const int64_t again = m.mtp.depths - m.mtp.layers();
  const Count of_layer = m.layers.back().experts() ? p.moe.active : p.dense.active;
  cost.matmul_flops +=
      per_weight * (Count(m.mtp.depths) * p.token_table + Count(again) * (of_layer + p.mtp));
  const auto add_attention = [&](const spec::LayerSpec& layer, int64_t times) {
    const auto& a = layer.grouped();
    (a.window > 0 ? cost.window_flops_per_position : cost.attention_flops_per_position) +=
        6.0 * Count(times) * Count(a.heads) * Count(a.head_dim + a.value_dim());
    cost.window = std::max(cost.window, a.window);
  };
  for (const spec::LayerSpec& layer : m.layers) add_attention(layer, 1);
  add_attention(m.layers.back(), again);
  return cost;
}

}  // namespace mtrain::plan
