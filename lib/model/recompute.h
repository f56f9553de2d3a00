// Recompute lists the activations that backward computes again instead of keeping them. lib/train
// copies it from plan::RecomputeOptions.
#pragma once
#include <cstdint>

namespace mtrain::model {

struct Recompute {
  // Selective recomputation, of every layer's attention core and MLP, and of its norms. `norms`
  // adds those of queries and keys if the core that reads them is computed again.
  bool attention_core = false, norms = false, mlp = false;
  // The queries, keys and values of latent attention, from the latents, which are kept.
  bool latent_up = false;
  // In layers with experts: the experts with their rows, but not the router's choices; only the
  // experts' activation; and the shared expert.
  bool experts = false, experts_act = false, shared_expert = false;
  // The outputs of a layer's norms and of its activation, from their inputs, which are kept.
  bool cheap = true;
  // Full recomputation: the stage's first `layers` layers form groups of `group` layers, and only
  // the input of a group is kept. The other layers keep everything. group = 0: no layer takes part.
  int64_t group = 0, layers = 0;
  // Such a group also keeps the logits, choices and weights of its routers, and recomputation does
  // not compute them again.
  bool keeps_router = false;
};

}  // namespace mtrain::model
