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

  // fp32, one element each: the gradient of the reported loss with respect to a token's loss, and
  // to a micro-batch's losses of a router (ExpertsOfStep::loss_grad).
  const Tensor& grad_scale() const { return grad_scale_1_.tensor; }
  const Tensor& router_grad_scale() const { return router_grad_scale_1_.tensor; }
  // Returns the segment's key, one int64 in the same memory each time. Throws RunError if more than
  // `max_dropouts` segments ask.
  Tensor dropout_key(const SegmentId& segment);

  struct Values {
    float grad_scale = 0, router_grad_scale = 0;
    uint64_t seed = 0;
    int64_t step = 0, micro_batch = 0;
  };
  // Enqueues the writes of one micro-batch's values, with the keys of all segments that have asked.
  void set(const Values& values);

 private:
  struct Scalar {
    Tensor tensor;
    float value = 0;  // what the tensor holds
  };
  void set(Scalar& scalar, float value);

  Stream& stream_;
  Scalar grad_scale_1_, router_grad_scale_1_;
  Tensor keys_N_;
  std::vector<SegmentId> segments_;  // in the order of their keys in keys_N_
};

}  // namespace mtrain::model
