// AdamW over what a rank owns of all units: fp32 moments, fp32 master weights, and a bf16 copy
// where bf16 computes. Without master weights the bf16 weights themselves are updated. They are
// rounded at random (Gupta et al. 2015) by numbers that are functions of seed, step, parameter and
// element alone, so that every layout rounds alike.
#pragma once
#include <functional>
#include <vector>

#include "model/param/parameters.h"
#include "ops/ops.h"
#include "plan/options/optimizer_options.h"

namespace mtrain::optim {

class AdamW {
 public:
  // The parameters are materialized.
  AdamW(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
        uint64_t seed = 0);

  // Makes update number `step` (from 1). Parameters whose spec says decay = false do not decay.
  // grad_scale is one fp32 that the gradients are multiplied by; where it is not finite, nothing
  // changes. `updated` (optional) is called for each unit once its update is enqueued.
  void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
            const std::function<void(model::ParamUnit&)>& updated = {});

  struct Moments {
    Tensor m, v;  // flat, fp32: those of what this rank owns of the unit (ParamUnit::own)
  };
  const Moments& moments(const model::ParamUnit& unit) const;
  // Sets this rank's part of one of a parameter's moments; `values` are those of the whole,
  // layout-free tensor.
  void set_moment(Stream& stream, const model::Parameter& p, Tensor Moments::*which,
                  const std::vector<float>& values);

 private:
  struct State {
    model::ParamUnit* unit;
    Moments moments;
  };
  ops::AdamWHyper hyper(int64_t step, float lr, bool decay) const;
  void update(Stream& stream, const ops::AdamWHyper& hyper, const State& s,
              const model::OwnedRange& range, int64_t in_range, int64_t count,
              const Tensor& grad_scale) const;
  void update_rounded(Stream& stream, int64_t step, float lr, const State& s,
                      const Tensor& grad_scale) const;

  plan::OptimizerOptions options_;
  uint64_t seed_;
  std::vector<State> states_;
};

// Returns the global gradient norm, and the factor that brings it down to max_norm (0: no
// clipping). The factor is NaN where the norm or `loss` (fp64, optional) is not finite, so that
// AdamW leaves everything as it is. `sum_parts` adds up what ranks that own different parts have.
ops::Clip clip_grad_norm(Stream& stream, model::ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss = {});

}  // namespace mtrain::optim
