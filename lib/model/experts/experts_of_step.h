// The part of a training step that only layers with experts read: the weight of their own losses,
// the loads of the previous step, and the memory to which they add losses and loads.
#pragma once
#include <chrono>

#include "ops/experts.h"
#include "tensor/tensor.h"

namespace mtrain::model {

struct ExpertsOfStep {
  // Numbers of a layer's row in sums_LS: kernels::RouterSums, and how many choices each of E
  // experts has dropped.
  static constexpr int64_t columns(int64_t E) { return ops::router_sum_columns(E) + E; }
  Tensor sums(int64_t layer, int64_t E) const {
    return sums_LS.flat(layer * columns(E), {ops::router_sum_columns(E)});
  }
  Tensor dropped(int64_t layer, int64_t E) const {
    return sums_LS.flat(layer * columns(E) + ops::router_sum_columns(E), {E});
  }

  // The gradient of the reported loss with respect to the losses of one micro-batch's router: 1 /
  // (micro-batches of the global batch).
  float loss_grad = 1;
  // fp64: the balance losses and the z-losses of all layers and micro-batches are added to these.
  Tensor loss_2;
  // fp32, one row of columns(E) for each layer of the model: those of all micro-batches are added.
  Tensor sums_LS;
  // fp32: each expert's share of the choices in the previous global batch, for the global loss.
  // Absent in the first step.
  Tensor fraction_LE;
  // If not null, the host adds the time for which it waits for the experts' numbers of rows.
  std::chrono::nanoseconds* host_wait = nullptr;
};

}  // namespace mtrain::model
