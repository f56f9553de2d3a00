// A transformer layer is a list of segments. Plain execution runs them in order. Schedules that
// combine a forward with another micro-batch's backward run the two passes' segments in turns.
#pragma once
#include "model/norm.h"
#include "model/segment_id.h"

namespace mtrain::model {

struct HiddenGradient {
  Tensor d_TH;
  Tensor amax;  // the segment's gradient_amax(), if the kernel that wrote d_TH was given it
};

class Segment {
 public:
  virtual ~Segment() = default;
  virtual SegmentKind kind() const = 0;
  // The unit that holds all parameters of the segment.
  virtual ParamUnit* unit() const = 0;
  // Pushes what backward() needs to step.stash.
  virtual Hidden forward(Step& step, const Hidden& h) = 0;
  // `d` is the gradient of x + delta, where forward() returned (x, delta). Returns the gradient of
  // x + delta of forward()'s input, whose largest size goes into `amax` (optional).
  virtual Tensor backward(Step& step, const HiddenGradient& d, const Tensor& amax) = 0;
  // Returns where the kernel that writes backward()'s `d` is to leave its largest size; absent if
  // the segment has no use for it.
  virtual Tensor gradient_amax() const = 0;
};

}  // namespace mtrain::model
