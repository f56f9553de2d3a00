// The choice of activations that backward recomputes: the recipe's recompute section with every
// default filled in. The recipe's granularity decides which members are set.
#pragma once
#include <cstdint>

namespace mtrain::plan {

struct RecomputeOptions {
  // Recomputed in every layer: the attention core, the norms, the MLP.
  bool attention_core = false, norms = false, mlp = false;
  bool latent_up = false;  // the heads of latent attention, from the latents
  // Recomputed in every layer with experts: the experts with their rows, the experts' activation,
  // the shared expert.
  bool experts = false, experts_act = false, shared_expert = false;
  // Full recomputation: the first `layers` layers of each stage keep only the input of each group
  // of `group` layers. Both are 0 without it.
  int64_t group = 0, layers = 0;
  bool keeps_router = false;  // these groups keep logits, choices and weights of routers
  // Backward recomputes the outputs of norms and activation functions (plan/cheap_recompute.h).
  bool cheap = true;
};

}  // namespace mtrain::plan
