#include "spec/model_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mtrain::spec {

int64_t Experts::capacity(int64_t T) const {
  const double share = std::ceil(capacity_factor * double(T * per_token) / double(count));
  return int64_t(std::min(share, double(T)));  // a token chooses an expert at most once
}

const Experts* ModelSpec::experts() const {
  for (const LayerSpec& layer : layers)
    if (const Experts* experts = layer.experts()) return experts;
  return nullptr;
}

const DenseMlp* ModelSpec::dense_mlp() const {
  for (const LayerSpec& layer : layers)
    if (const auto* mlp = std::get_if<DenseMlp>(&layer.mlp)) return mlp;
  return nullptr;
}

ModelSpec without_predictions(ModelSpec m) {
  m.layers.resize(size_t(m.main_layers()));
  m.mtp = {};
  return m;
}

ModelSpec without_training(ModelSpec m) {
  m = without_predictions(std::move(m));
  m.hidden_dropout = m.embedding_dropout = m.init_std = 0;
  if (m.lora) m.lora->dropout = 0;
  for (LayerSpec& layer : m.layers)
    if (auto* e = std::get_if<Experts>(&layer.mlp)) {
      const Experts none;
      e->logits = none.logits, e->loss_coeffs = none.loss_coeffs, e->bias_rate = none.bias_rate;
      e->capacity_factor = none.capacity_factor, e->drops_lightest = none.drops_lightest;
    }
  return m;
}

}  // namespace mtrain::spec
