// The interface of optimizers. Under every layout, an optimizer updates the part of each unit that
// this rank owns, and keeps state for this part only.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "ops/reduce.h"
#include "optim/owned_state.h"
#include "plan/options/optimizer_options.h"

namespace mtrain::optim {

// A kind of state, such as a moment. Checkpoints have a tensor of it for each parameter for which
// values.has() is true.
struct StateTensor {
  std::string suffix;  // follows the parameter's name in a checkpoint: ".m"
  const OwnedState& values;
  bool negative;  // whether a value may be below 0; if not, loading refuses such values
};

class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // its functions and state refer to it
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;
  // Enqueues update number `step`, counted from 1. The gradients are first multiplied by
  // grad_scale, one fp32 element on the device; if it is not finite, no weight and no state
  // changes. Calls `updated`, which may be empty, for each unit in order, once the unit's update is
  // enqueued. May overwrite the gradients.
  virtual void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                    const std::function<void(model::ParamUnit&)>& updated) = 0;
  // Enqueues the write of what depends on `step` and `lr` to device memory. A step() that a graph
  // captures reads it there when the graph is replayed, and not from its own arguments. Call it
  // before the capture and before each replay.
  virtual void write_arguments(Stream& stream, int64_t step, float lr) = 0;
  // Returns every kind of state, in the order in which checkpoints have them.
  virtual std::vector<StateTensor> state() const = 0;
};

// For an optimizer of full matrices: the ranks that have this rank's parameters, or parts of them,
// and the stream of their communication.
struct MatrixRanks {
  Group group;
  Stream& stream;
  // Makes a group of some ranks of `group`, given by their ranks in the world. These ranks all call
  // it.
  std::function<Group(const std::vector<int>& ranks)> subgroup;
};

// Makes the optimizer that `options` name. The parameters must be materialized. `ranks` is called
// only for an optimizer of full matrices; all ranks of its group must then call make_optimizer().
std::unique_ptr<Optimizer> make_optimizer(Stream& stream, model::ParamStore& params,
                                          const plan::OptimizerOptions& options, uint64_t seed,
                                          const std::function<MatrixRanks()>& ranks);

// Returns the global gradient norm, and the factor that reduces it to max_norm (0: no clipping).
// Both include the factor ClipLimits::unscale. If a gradient of one rank is not finite, the norm is
// not finite on any rank. The factor is NaN if the norm or `loss` (fp64, optional) is not finite,
// or if the norm is above its limit; an optimizer then changes nothing. `sum_parts` sums a tensor
// in place over the ranks that own different parts.
ops::Clip clip_grad_norm(Stream& stream, model::ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss = {}, const ops::ClipLimits& limits = {});

}  // namespace mtrain::optim
