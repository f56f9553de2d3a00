// The state of all layers' routers that lasts from step to step. It depends only on counts over
// global batches. Every rank has all of it, and it is the same under every layout.
#pragma once
#include <vector>

#include "checkpoint/replicated_state.h"
#include "model/experts/experts_of_step.h"
#include "spec/model_spec.h"

namespace mtrain::train {

class RouterState {
 public:
  // Allocates the tensors that the model needs; a dense model needs none.
  RouterState(Stream& stream, const spec::ModelSpec& model);

  // The biases of all layers' routers, (layers, experts) in fp32; absent if routers have no biases.
  const Tensor& bias_LE() const { return bias_LE_; }
  // Each expert's share of the last batch's choices (ExpertsOfStep::fraction_LE); absent before the
  // first batch.
  Tensor fraction_LE() const { return has_fraction_ ? fraction_LE_ : Tensor(); }

  // Whether step_done() changes what the routers of the next step compute.
  bool changes() const { return bias_LE_ || fraction_LE_; }
  // Updates the state after a step that has updated the weights. `sums_LS` is
  // ExpertsOfStep::sums_LS, summed over all ranks; `host` holds the same numbers on the host.
  void step_done(Stream& stream, const Tensor& sums_LS, const std::vector<float>& host);

  // Returns the tensors that checkpoints hold, for each layer with experts.
  std::vector<checkpoint::ReplicatedTensor> tensors() const;
  // Must be called after these tensors were loaded.
  void loaded(Stream& stream);

 private:
  const spec::ModelSpec model_;
  Tensor bias_LE_, fraction_LE_;
  // Whether a batch has been counted. Before the first one all fractions are 0; later some are not.
  bool has_fraction_ = false;
};

}  // namespace mtrain::train
