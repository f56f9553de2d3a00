// Low-rank adapters of linear layers (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
// Models"): y = W x + (alpha / dim) B A x. All other tensors of such a model are frozen.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace mtrain::spec {

// What an adapter is added to: a linear (qkv, proj, gate_up, up, down), or one of the weights that
// are stacked in a linear. Each expert of a layer has an adapter of its own for expert_gate_up and
// for expert_down. The others of that layer are those of its shared expert. In latent attention,
// query is the linear of the queries' heads; query_down makes their latent. latent_down makes the
// latent of keys and values, and latent_up their heads.
enum class Projection : uint8_t {
  qkv,
  query,
  key,
  value,
  proj,
  gate_up,
  gate,
  up,
  down,
  expert_gate_up,
  expert_down,
  query_down,
  latent_down,
  latent_up
};

struct Lora {
  int64_t dim = 8, expert_dim = 8;  // the rank of A B; that of one expert's
  double alpha = 32;
  double dropout = 0;  // of the adapters' inputs, in training, except those of experts
  // The projections of each layer that have an adapter.
  std::vector<std::vector<Projection>> layers = {};

  float scale() const { return float(alpha / double(dim)); }
  float expert_scale() const { return float(alpha / double(expert_dim)); }
  bool adapts(int64_t layer, Projection p) const {
    return layer >= 0 && layer < int64_t(layers.size()) &&
           std::ranges::count(layers[size_t(layer)], p) > 0;
  }
  bool operator==(const Lora&) const = default;
};

}  // namespace mtrain::spec
