// AdamW, or Adam with L2 weight decay, over the parts of all units that this rank owns. Master
// weights are fp32, moments fp32 or bf16; an update also writes the bf16 or fp16 values that
// compute. Without master weights it updates the bf16 values themselves, with stochastic rounding
// if OptimizerOptions::rounds_at_random (Gupta et al. 2015), as bf16 moments are. The random
// numbers are functions of seed, step, parameter and element, so that every layout rounds alike.
#pragma once
#include <functional>
#include <vector>

#include "model/param/param_uploader.h"
#include "ops/ops.h"
#include "plan/options/optimizer_options.h"

namespace mtrain::optim {

class AdamW {
 public:
  // The parameters must be materialized.
  AdamW(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
        uint64_t seed = 0);

  // Makes update number `step` (from 1). Parameters with ParamSpec::decay = false do not decay.
  // The gradients are multiplied by grad_scale, one fp32; if it is not finite, nothing changes.
  // `updated` (optional) is called for each unit once its update is enqueued.
  void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
            const std::function<void(model::ParamUnit&)>& updated = {});

  struct Moments {
    Tensor m, v;  // flat, of the plan's type: the part that this rank owns, laid out as
                  // ParamUnit::own_value is
  };
  const Moments& moments(const model::ParamUnit& unit) const;
  DType moments_type() const { return options_.moments; }
  // Sets this rank's part of one of a parameter's moments, rounded to nearest if moments are bf16.
  // `read` gives elements of the layout-free tensor.
  void set_moment(model::ParamUploader& uploader, const model::Parameter& p, Tensor Moments::*which,
                  const model::ReadElements& read);

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
// clipping). Both include the factor `unscale`, 1 / the loss scale. The norm is not finite on every
// rank if a gradient is not finite on one; the factor is then NaN, as where `loss` (fp64, optional)
// is not finite, so that AdamW changes nothing. `sum_parts` sums a tensor over the ranks that own
// different parts, in place.
ops::Clip clip_grad_norm(Stream& stream, model::ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss = {}, double unscale = 1);

}  // namespace mtrain::optim
