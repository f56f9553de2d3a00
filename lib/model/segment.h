// A transformer layer is a list of segments. Plain execution runs them in order. Schedules that
// combine a forward with another micro-batch's backward run the two passes' segments in turns.
#pragma once
#include "model/norm.h"
#include "model/segment_id.h"

namespace mtrain::model {

class Segment {
 public:
  virtual ~Segment() = default;
  virtual SegmentKind kind() const = 0;
  // The unit that holds all parameters of the segment.
  virtual ParamUnit* unit() const = 0;
  // Pushes what backward() needs to step.stash.
  virtual Hidden forward(Step& step, const Hidden& h) = 0;
  // d_TH is the gradient of x + delta, where forward() returned (x, delta). Returns the gradient of
  // x + delta of forward()'s input.
  virtual Tensor backward(Step& step, const Tensor& d_TH) = 0;
};

}  // namespace mtrain::model
