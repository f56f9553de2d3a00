// GraphInputs holds, in device memory, the values that differ from one micro-batch to the next.
// Launches that a graph replays (device/graph.h) read there what set() wrote last.
#pragma once
#include <cstdint>
#include <vector>

#include "model/segment_id.h"
#include "tensor/tensor.h"

namespace mtrain::model {

class GraphInputs {
 public:
  // At most `max_dropouts` segments of the model drop elements.
  GraphInputs(Stream& stream, int64_t max_dropouts);

  const Tensor& grad_scale() const { return grad_scale_1_; }  // fp32, one element
  // Returns the segment's key, one int64 in the same memory each time. Throws RunError if more than
  // `max_dropouts` segments ask.
  Tensor dropout_key(const SegmentId& segment);

  // Enqueues the writes of one micro-batch's values, with the keys of all segments that have asked.
  void set(float grad_scale, uint64_t seed, int64_t step, int64_t micro_batch);

 private:
  Stream& stream_;
  Tensor grad_scale_1_, keys_N_;
  float set_grad_scale_ = 0;         // what grad_scale_1_ holds
  std::vector<SegmentId> segments_;  // in the order of their keys in keys_N_
};

}  // namespace mtrain::model
