// What a layer with latent attention computes between the norms of its latents and its output
// projection, if that is not an AttentionCore on expanded heads: generation attends to the latents
// of earlier tokens.
#pragma once
#include "model/attention_core.h"
#include "ops/latent_heads.h"

namespace mtrain::model {

struct LatentRows {
  Tensor q_TN;       // (T, A D): queries of this rank's heads, rotated
  Tensor latent_TC;  // normalized latents of keys and values
  Tensor shared_TR;  // the elements that all keys of a token share, rotated
  Tensor weight_NC;  // expands a latent to the keys and values of this rank's heads
};

class LatentCore {
 public:
  virtual ~LatentCore() = default;
  // Returns the heads' outputs (T, A V). It has no backward.
  virtual Tensor forward(Step& step, const LatentRows& rows) = 0;
};

// The heads of this rank, and how their rows are divided.
struct LatentConfig {
  HeadConfig heads;
  ops::LatentDims dims;
  int64_t C;  // elements of a latent
};

}  // namespace mtrain::model
