// What a micro-batch's launches are told that differs from one micro-batch to the next, in device
// memory: where launches are replayed (device/graph.h), they find there what was set last.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace mtrain {

class ReplayedValues {
 public:
  // `dropouts`: the most places of the model that drop.
  ReplayedValues(Stream& on, int64_t dropouts);

  const Tensor& grad_scale() const { return grad_scale_1_; }  // fp32, one element
  // int64, one element, the same memory each time. Throws RunError beyond the most places.
  Tensor dropout_key(const std::string& place);

  // Enqueues the values of one micro-batch, for all places asked for so far.
  void set(float grad_scale, uint64_t seed, int64_t step, int64_t micro_batch);

 private:
  Stream& on_;
  Tensor grad_scale_1_, keys_N_;
  float set_grad_scale_ = 0;
  std::vector<std::string> places_;  // by their place in keys_N
};

}  // namespace mtrain
