// The state of all layers' routers that lasts from step to step. It depends on the counts of whole
// global batches alone, so that every rank has all of it, alike under every layout.
#pragma once
#include <vector>

#include "checkpoint/replicated_state.h"
#include "model/experts/experts_of_step.h"
#include "spec/model_spec.h"

namespace mtrain::train {

class RouterState {
 public:
  // Makes what the model needs; nothing for a dense model.
  RouterState(Stream& stream, const spec::ModelSpec& model);

  // The biases of all layers' routers, (layers, experts) in fp32; absent without them.
  const Tensor& bias_LE() const { return bias_LE_; }
  // Each expert's part of the choices of the last batch, as ExpertsOfStep has it.
  Tensor fraction_LE() const { return has_fraction_ ? fraction_LE_ : Tensor(); }

  // Moves the state on by a step that has updated the weights: `sums_LS` are those of ExpertsOfStep
  // from all ranks, and `host` the same numbers on the host.
  void step_done(Stream& stream, const Tensor& sums_LS, const std::vector<float>& host);

  // What checkpoints hold, for each layer with experts.
  std::vector<checkpoint::ReplicatedTensor> tensors() const;
  // Call it after these tensors were loaded.
  void loaded(Stream& stream);

 private:
  const spec::ModelSpec model_;
  Tensor bias_LE_, fraction_LE_;
  // A batch has been counted. Until then the fractions are 0, as they never are of a batch.
  bool has_fraction_ = false;
};

}  // namespace mtrain::train
