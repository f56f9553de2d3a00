// What a training step keeps in memory, by formula; the allocator's accounting shows what it really
// was.
#pragma once
#include "base/dtype.h"
#include "model/gpt.h"

namespace mtrain {

struct MemoryEstimate {
  int64_t params, grads, optimizer, activations;  // bytes
  int64_t total() const { return params + grads + optimizer + activations; }
};
MemoryEstimate estimate_memory(const GptConfig& c, DType compute, int64_t micro_batch_tokens,
                               const Recompute& recompute);

}  // namespace mtrain
