// A transformer layer is a list of segments. Plain execution runs them in order. Schedules that
// combine a forward with another micro-batch's backward run the two passes' segments in turns.
#pragma once
#include "model/flow.h"
#include "model/segment_id.h"
#include "ops/operand.h"

namespace mtrain::model {

class Segment {
 public:
  virtual ~Segment() = default;
  virtual SegmentKind kind() const = 0;
  // The unit that holds all parameters of the segment.
  virtual ParamUnit* unit() const = 0;
  // Takes the residual stream, and returns it with what the segment adds. Pushes what backward()
  // needs to step.stash.
  virtual Flow forward(Step& step, Flow in) = 0;
  // `d` has the gradient of x + delta, where forward() returned (x, delta). Returns the gradient of
  // the same sum of forward()'s input. Its kernel writes it for `to`, the destination of the
  // segment that reads it.
  virtual Flow backward(Step& step, Flow d, const ops::Destination& to) = 0;
  // Returns what the kernel that writes backward()'s `d` does for the segment; nothing if the
  // segment has no use for it.
  virtual ops::Destination gradient() const = 0;
};

}  // namespace mtrain::model
