// Makes models by hand, for tests of layers that no recipe is read for. All layers are alike until
// a test changes them.
#pragma once
#include "spec/model_spec.h"

namespace mtrain {

inline spec::GroupedAttention rotating_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .rotary = {.dims = head_dim}};
}

inline spec::ModelSpec small_spec(int64_t layers, int64_t hidden, int64_t vocab,
                                  const spec::LayerSpec& layer) {
  return {.hidden = hidden,
          .vocab = vocab,
          .layers = std::vector<spec::LayerSpec>(size_t(layers), layer)};
}

inline spec::GroupedAttention& attention_of(spec::LayerSpec& layer) {
  return std::get<spec::GroupedAttention>(layer.attention);
}

// Calls change(attention) for each layer.
template <class Change>
void change_attention(spec::ModelSpec& model, const Change& change) {
  for (spec::LayerSpec& layer : model.layers) change(attention_of(layer));
}

}  // namespace mtrain
