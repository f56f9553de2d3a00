// A model as a value: everything that decides which tensors it has and what they compute, with
// every default filled in. The recipe makes it once (recipe/model_spec.h), and all others read it.
#pragma once
#include <cstdint>
#include <vector>

#include "base/norm_kind.h"
#include "spec/layer_spec.h"

namespace mtrain::spec {

// The norms of the residual stream.
struct NormSpec {
  NormKind kind = NormKind::rms;
  double eps = 1e-5;
  bool plus_one = false;  // they multiply by 1 + weight
  bool bias = false;      // layer norm only

  bool operator==(const NormSpec&) const = default;
};

struct ModelSpec {
  int64_t hidden = 0;
  int64_t vocab = 0;  // ids, without the padding of a layout; 0 until the tokenizer has been asked
  int64_t max_positions = 0;
  bool learned_positions = false;  // a table of max_positions rows
  NormSpec norm = {};
  std::vector<LayerSpec> layers = {};
  bool tied_embeddings = false;
  double embedding_scale = 1;  // multiplies token embeddings
  double residual_scale = 1;   // multiplies what attention and MLP add to the residual stream
  double logit_scale = 1;      // multiplies logits, before the cap
  double logit_cap = 0;        // c of c tanh(x / c); 0: none
  double hidden_dropout = 0, embedding_dropout = 0;
  double init_std = 0.02;

  int64_t layer_count() const { return int64_t(layers.size()); }
  const LayerSpec& layer(int64_t i) const { return layers.at(size_t(i)); }
  // The experts of the layers that have them, which are alike in all; null for a dense model.
  const Experts* experts() const;
  // The MLP of the layers without experts, alike; null if all layers have experts.
  const DenseMlp* dense_mlp() const;
  bool operator==(const ModelSpec&) const = default;
};

}  // namespace mtrain::spec
