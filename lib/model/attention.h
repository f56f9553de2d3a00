// The attention segment of a block: norm, fused qkv projection, optional per-head norms, rotary,
// attention core, projection.
#pragma once
#include <memory>
#include <string>

#include "model/linear.h"
#include "model/norm.h"
#include "model/rotary.h"
#include "model/segment.h"

namespace mtrain {

// softmax(q k^T) v. The interface that context parallelism implements (ring, all-gather,
// all-to-all).
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  // qkv_TN: (T, (A + 2 G) D), rotary applied
  virtual ops::AttentionResult forward(Step& step, const Tensor& qkv_TN) = 0;
  virtual Tensor backward(Step& step, const Tensor& qkv_TN, const ops::AttentionResult& forward,
                          const Tensor& dout_TN) = 0;
};
std::unique_ptr<AttentionCore> local_attention(const GptConfig& c);

std::unique_ptr<Segment> attention_segment(ParamStore& params, const GptConfig& c, int64_t layer,
                                           const RotaryTables& rotary, bool recompute_core);

}  // namespace mtrain
