// softmax(q k^T) v, between the projections of the attention segment.
#pragma once
#include <any>
#include <memory>

#include "model/step.h"
#include "ops/ops.h"

namespace mtrain::model {

// The heads that this rank computes.
struct HeadConfig {
  int64_t A, G, D;     // query heads, kv heads, elements of each
  int64_t window = 0;  // 0: none
  float scale() const;
};

struct CoreResult {
  Tensor out_TN;  // (T, A * D)
  std::any kept;  // what backward needs besides, of the core's own type; its inputs among it
};

// The interface that context parallelism implements (ring, all-gather, all-to-all).
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  // qkv_TN: (T, (A + 2 G) D), rotary applied
  virtual CoreResult forward(Step& step, const Tensor& qkv_TN) = 0;
  virtual Tensor backward(Step& step, const CoreResult& forward,
                          const Tensor& dout_TN) = 0;  // dqkv
};
std::unique_ptr<AttentionCore> local_attention(const HeadConfig& heads);

}  // namespace mtrain::model
