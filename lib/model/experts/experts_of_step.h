// What layers with experts need of a step beside what other layers need: the weight of their own
// losses, and the memory in which they leave losses and loads.
#pragma once
#include <chrono>

#include "tensor/tensor.h"

namespace mtrain::model {

struct ExpertsOfStep {
  // The gradient of the reported loss with respect to the losses of one micro-batch's router: 1 /
  // (micro-batches of the global batch).
  float loss_grad = 1;
  // fp64: the balance losses and the z-losses of all layers and micro-batches are added to these.
  Tensor loss_2;
  // fp32, one row for each layer of the model: kernels::RouterSums of all micro-batches are added.
  Tensor sums_LS;
  // Null, or the time is added here for which the host waits to know how many rows experts have.
  std::chrono::nanoseconds* host_wait = nullptr;
};

}  // namespace mtrain::model
