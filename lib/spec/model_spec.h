// Describes a model: everything that decides which tensors it has and what they compute, with every
// default filled in. recipe/model_spec.h creates it from the recipe, and all other code reads it.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "base/norm_kind.h"
#include "spec/layer_spec.h"
#include "spec/lora.h"

namespace mtrain::spec {

// The norms of the residual stream.
struct NormSpec {
  NormKind kind = NormKind::rms;
  double eps = 1e-5;
  bool plus_one = false;  // norms multiply by 1 + weight
  bool bias = false;      // layer norm only

  bool operator==(const NormSpec&) const = default;
};

struct ModelSpec {
  int64_t hidden = 0;
  int64_t vocab = 0;  // ids, without a layout's padding; 0 until the tokenizer is loaded
  int64_t max_positions = 0;
  bool learned_positions = false;  // a table of max_positions rows
  NormSpec norm = {};
  std::vector<LayerSpec> layers = {};
  bool tied_embeddings = false;
  float embedding_scale = 1;  // multiplies token embeddings
  float residual_scale = 1;   // multiplies what attention and MLP add to the residual stream
  float logit_scale = 1;      // multiplies logits, before the cap
  double logit_cap = 0;       // c > 0: logits x become c tanh(x / c); 0: no cap
  double hidden_dropout = 0, embedding_dropout = 0;
  double init_std = 0.02;
  std::optional<Lora> lora = {};  // all but its adapters is frozen

  int64_t layer_count() const { return int64_t(layers.size()); }
  const LayerSpec& layer(int64_t i) const { return layers.at(size_t(i)); }
  // The experts of a layer, the same in all layers that have experts; null for a dense model.
  const Experts* experts() const;
  // The MLP of the layers without experts, the same in all of them; null if all layers have
  // experts.
  const DenseMlp* dense_mlp() const;
  bool operator==(const ModelSpec&) const = default;
};

// Returns the model without what only its training uses: initial values, dropout, losses, how
// routers are balanced, and the element type of their logits.
ModelSpec without_training(ModelSpec model);

}  // namespace mtrain::spec
