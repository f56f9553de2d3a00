// A transformer layer is a list of segments. Plain execution runs them in order; schedules that
// combine a forward with another micro-batch's backward interleave them.
#pragma once
#include "model/norm.h"

namespace mtrain {

class Segment {
 public:
  virtual ~Segment() = default;
  virtual const char* name() const = 0;
  virtual ParamUnit* unit() const = 0;                      // of all its parameters
  virtual Hidden forward(Step& step, const Hidden& h) = 0;  // stashes what backward needs
  virtual Tensor backward(Step& step,
                          const Tensor& d_TH) = 0;  // d: gradient of (x + delta), in and out
};

}  // namespace mtrain
