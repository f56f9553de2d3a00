// The attention core computes softmax(q k^T) v between the qkv and the output projection of the
// attention segment.
#pragma once
#include <any>
#include <memory>

#include "model/step.h"
#include "ops/operand.h"

namespace mtrain::model {

// The heads of a layer that this rank computes.
struct HeadConfig {
  int64_t A, G, D;        // query heads, key-value heads, elements of a head
  int64_t window = 0;     // positions that a query sees; 0: all before it
  float score_scale = 0;  // 0: 1 / sqrt(D)
  float score_cap = 0;    // c of c tanh(s / c), the scores after the cap; 0: none
  int64_t Dv = 0;         // elements of a value head; 0: D
  float scale() const;    // the factor of q k^T
  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
  // Elements per token: of the keys and values, and of the core's result.
  int64_t kv_width() const { return G * (D + value_dim()); }
  int64_t out_width() const { return A * value_dim(); }
};

struct CoreResult {
  ops::Written out_TN;  // (T, A * Dv); always has plain numbers, which backward() needs
  // Everything else that backward() needs, the core's input included, in a type of the core's own.
  std::any kept;
};

// The interface that context parallelism implements (ring, all-gather, all-to-all).
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  // A destination belongs to the linear that reads the result. A core whose kernels can do nothing
  // for it ignores it.
  //
  // qkv_TN is (T, (A + G) D + G Dv); rotary has been applied to it.
  virtual CoreResult forward(Step& step, const Tensor& qkv_TN, const ops::Destination& to) = 0;
  // Returns dL/dqkv (T, (A + G) D + G Dv), plain. `forward` is what forward() returned. `qk_last`:
  // no kernel changes the gradients of q and k later.
  virtual ops::Written backward(Step& step, const CoreResult& forward, const Tensor& dout_TN,
                                const ops::Destination& to, bool qk_last) = 0;
  // Replaces the qkv_TN that `forward` keeps for backward: an absent tensor drops it, and the
  // caller sets the same numbers before backward. Returns false if the core keeps another tensor
  // instead.
  virtual bool set_input(CoreResult& /*forward*/, const Tensor& /*qkv_TN*/) { return false; }
};
// The core for a rank that has all positions of its sequences.
std::unique_ptr<AttentionCore> local_attention(const HeadConfig& heads);

}  // namespace mtrain::model
