// The interface of optimizers. They update the parts of all units that this rank owns, whatever the
// layout, and keep their state for these parts alone.
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

// A kind of state. Checkpoints have a tensor of it for each parameter that has it.
struct StateTensor {
  std::string suffix;  // follows the parameter's name in a checkpoint: ".m"
  const OwnedState& values;
  bool negative;  // whether a value may be below 0
};

class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // its functions and state refer to it
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;
  // Makes update number `step` (from 1). The gradients are multiplied by grad_scale, one fp32; if
  // it is not finite, nothing changes. `updated` is called for each unit, in their order, once its
  // update is enqueued; it may be empty. The gradients are of no use afterwards.
  virtual void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                    const std::function<void(model::ParamUnit&)>& updated) = 0;
  // Returns every kind of state, in the order in which checkpoints have them.
  virtual std::vector<StateTensor> state() const = 0;
};

// The ranks that have the same parameters, or parts of them, and the stream of their communication.
struct MatrixRanks {
  Group group;
  Stream& stream;
  // Makes a group of some of them, by their ranks in the world. All of these call it.
  std::function<Group(const std::vector<int>& ranks)> subgroup;
};

// Makes the optimizer that `options` name. The parameters must be materialized. All ranks of
// `ranks` call it; only an optimizer of whole matrices uses them.
std::unique_ptr<Optimizer> make_optimizer(Stream& stream, model::ParamStore& params,
                                          const plan::OptimizerOptions& options, uint64_t seed,
                                          const std::function<MatrixRanks()>& ranks);

// Returns the global gradient norm, and the factor that brings it down to max_norm (0: no
// clipping). Both include the factor `unscale`, 1 / the loss scale. The norm is not finite on every
// rank if a gradient is not finite on one; the factor is then NaN, as where `loss` (fp64, optional)
// is not finite, so that an optimizer changes nothing. `sum_parts` sums a tensor over the ranks
// that own different parts, in place.
ops::Clip clip_grad_norm(Stream& stream, model::ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss = {}, double unscale = 1);

}  // namespace mtrain::optim
