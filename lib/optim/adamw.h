// AdamW over what a rank owns of all units: fp32 moments, fp32 master weights, and a bf16 copy
// where that is what computes. Without master weights the bf16 weights are updated, and rounded at
// random (Gupta et al. 2015) by numbers that are functions of seed, step, parameter and its element
// alone, so that every layout rounds alike.
#pragma once
#include <functional>
#include <vector>

#include "model/parameters.h"
#include "ops/ops.h"
#include "recipe/optimizer.h"

namespace mtrain {

class AdamW {
 public:
  // Of materialized parameters.
  AdamW(Stream& on, ParamStore& params, const OptimizerConfig& config, uint64_t seed = 0);

  // Update number `step` (from 1). Parameters whose spec says decay = false do not decay.
  // grad_scale: one fp32, multiplied into the gradients; where it is not finite nothing changes.
  // `updated` (optional) is told of each unit once its update is enqueued.
  void step(Stream& on, int64_t step, float lr, const Tensor& grad_scale,
            const std::function<void(ParamUnit&)>& updated = {});

  struct Moments {
    Tensor m, v;  // flat, fp32, of what this rank owns of the unit (ParamUnit::own)
  };
  const Moments& moments(const ParamUnit& unit) const;

 private:
  struct State {
    ParamUnit* unit;
    Moments moments;
  };
  ops::AdamWHyper hyper(int64_t step, float lr, bool decay) const;
  void update(Stream& on, const ops::AdamWHyper& hyper, const State& s, const OwnedRange& range,
              int64_t in_range, int64_t count, const Tensor& grad_scale) const;
  void update_rounded(Stream& on, int64_t step, float lr, const State& s,
                      const Tensor& grad_scale) const;

  OptimizerConfig config_;
  uint64_t seed_;
  std::vector<State> states_;
};

// The global gradient norm, and the factor that brings it down to max_norm (0: no clipping); NaN
// where the norm or `loss` (fp64, optional) is not finite, so that AdamW leaves everything as it
// is.
// `sum_parts` adds up what ranks that own different parts have.
ops::Clip clip_grad_norm(Stream& on, ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss = {});

}  // namespace mtrain
