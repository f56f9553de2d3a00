// Which activations backward computes again: the recipe's recompute section with every default
// filled in.
#pragma once
#include <cstdint>

namespace mtrain::plan {

struct RecomputeOptions {
  // In every layer: the attention core, the norms, the MLP.
  bool attention_core = false, norms = false, mlp = false;
  // In every layer with experts: their rows and all that they compute, their activation, the shared
  // expert.
  bool experts = false, experts_act = false, shared_expert = false;
  // The first `layers` layers keep only the input of each group of `group` layers. If `layers` is
  // 0, all layers keep everything.
  int64_t group = 0, layers = 0;
  bool keeps_router = false;  // in these groups: logits, choices and weights of routers are kept
  // The outputs of norms and activations; plan/cheap_recompute.h decides it.
  bool cheap = true;
};

}  // namespace mtrain::plan
