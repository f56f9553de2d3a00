// AdamW over the flat buffers of all units: fp32 moments, fp32 master weights, and a bf16 copy
// where that is what computes.
#pragma once
#include <vector>

#include "model/parameters.h"
#include "ops/ops.h"
#include "recipe/optimizer.h"

namespace mtrain {

class AdamW {
 public:
  AdamW(Stream& on, ParamStore& params, const OptimizerConfig& config);

  // Update number `step` (from 1). Parameters whose spec says decay = false do not decay.
  // grad_scale: one fp32, multiplied into the gradients; where it is not finite nothing changes.
  void step(Stream& on, int64_t step, float lr, const Tensor& grad_scale);

  struct Moments {
    Tensor m, v;  // flat, fp32, in the layout of the unit
  };
  Tensor m_of(const Parameter& p) const;  // the parameter's part of its unit's moments
  Tensor v_of(const Parameter& p) const;

 private:
  OptimizerConfig config_;
  std::vector<ParamUnit*> units_;
  std::vector<Moments> moments_;
};

// The global gradient norm, and the factor that brings it down to max_norm (0: no clipping); NaN
// where the norm or `loss` (fp64, optional) is not finite, so that AdamW leaves everything as it
// is.
ops::Clip clip_grad_norm(Stream& on, ParamStore& params, float max_norm, const Tensor& loss = {});

}  // namespace mtrain
