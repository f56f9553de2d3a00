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

// Multi-token prediction (DeepSeek-AI 2024, "DeepSeek-V3"). At depth k, from 1, a layer reads the
// result of the depth before and the embedding of the token that is k later. It predicts the token
// after that one. Only training runs these layers, which are the last of ModelSpec::layers.
struct TokenPrediction {
  int64_t depths = 0;     // tokens that are predicted beyond the next one
  bool repeated = false;  // one layer computes all depths
  float loss_factor = 0;  // multiplies the mean of the depths' losses

  int64_t layers() const { return repeated ? 1 : depths; }
  bool operator==(const TokenPrediction&) const = default;
};

struct ModelSpec {
  int64_t hidden = 0;
  int64_t vocab = 0;  // ids, without a layout's padding; 0 until the tokenizer is loaded
  int64_t max_positions = 0;
  bool learned_positions = false;  // a table of max_positions rows
  NormSpec norm = {};
  std::vector<LayerSpec> layers = {};
  TokenPrediction mtp = {};
  bool tied_embeddings = false;
  float embedding_scale = 1;  // multiplies token embeddings
  float residual_scale = 1;   // multiplies what attention and MLP add to the residual stream
  float logit_scale = 1;      // multiplies logits, before the cap
  double logit_cap = 0;       // c > 0: logits x become c tanh(x / c); 0: no cap
  double hidden_dropout = 0, embedding_dropout = 0;
  double init_std = 0.02;
  std::optional<Lora> lora = {};  // all but its adapters is frozen

  int64_t layer_count() const { return int64_t(layers.size()); }
  // The layers before those of multi-token prediction.
  int64_t main_layers() const { return layer_count() - mtp.layers(); }
  // Whether the last stage of a pipeline needs the token table.
  bool table_at_end() const { return tied_embeddings || mtp.depths > 0; }
  const LayerSpec& layer(int64_t i) const { return layers.at(size_t(i)); }
  // The experts of a layer, the same in all layers that have experts; null for a dense model.
  const Experts* experts() const;
  // The MLP of the layers without experts, the same in all of them; null if all layers have
  // experts.
  const DenseMlp* dense_mlp() const;
  bool operator==(const ModelSpec&) const = default;
};

// Returns the model without its layers of multi-token prediction.
ModelSpec without_predictions(ModelSpec model);

// Returns the model without what only its training uses: initial values, dropout, losses, how
// routers are balanced, the element type of their logits, and multi-token prediction.
ModelSpec without_training(ModelSpec model);

}  // namespace mtrain::spec
