// What one rank keeps in memory during a step, by formula, before any rank exists; the allocator's
// accounting shows what it really was.
#pragma once
#include "plan/layout.h"
#include "plan/model_size.h"

namespace mtrain::plan {

struct RunPlan;

struct MemoryEstimate {
  Count parameters = 0;  // elements of this rank, before they are sharded over data parallelism
  Count params = 0, grads = 0, optimizer = 0;  // bytes, from here on
  Count activations = 0;  // kept from forward to backward, and what one layer's backward needs
  Count logits = 0;       // beyond that: the head runs while no layer does
  Count buffers = 0;  // communication: gathered weights, tokens and keys in transit; 8-bit weights
  // The most that a launch of a GPU's kernels allocates for its own time, without what cuDNN takes
  // for itself (plan/attention_workspace.h); 0 on the CPU.
  Count workspace = 0;
  Count total() const {
    return params + grads + optimizer + activations + logits + buffers + workspace;
  }
};

// Estimates the ranks of one pipeline rank, which are alike, from a plan that lacks only its
// `memory`.
MemoryEstimate estimate_memory(const recipe::Recipe& recipe, const RunPlan& plan, int64_t vocab,
                               int64_t pp_rank);

}  // namespace mtrain::plan
