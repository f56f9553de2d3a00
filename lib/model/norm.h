// The residual stream, and the RMS or layer norm that reads it.
#pragma once
#include <string>
#include <vector>

#include "model/param/parameters.h"
#include "model/step.h"
#include "model/tensor_parallel.h"
#include "ops/norm.h"
#include "ops/operand.h"
#include "spec/model_spec.h"

namespace mtrain::model {

// The residual stream between two segments is x + delta. The next norm adds the two tensors while
// it reads them.
struct Hidden {
  Tensor x_TH;
  Tensor delta_TH;  // optional
};
// Returns x + delta.
Tensor materialize(Step& step, const Hidden& h);

class Norm {
 public:
  // Declares the norm's parameters in `unit`: those of `name` in `tensors`.
  Norm(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
       const std::string& name, const spec::NormSpec& norm, const TensorParallel& tensor);
  // `to` is the destination of the linear that reads the result.
  ops::NormResult forward(Step& step, const Hidden& h, const ops::Destination& to = {}) const;
  // Returns dL/d(norm's input) + dresidual_TH (optional), which one pass computes.
  ops::Written backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                        const Tensor& dresidual_TH, const ops::Destination& to) const;

  ParamUnit* unit() const { return weight_->unit; }

 private:
  ops::NormWeights weights(Stream& stream, DType dtype) const;
  NormKind kind_;
  float eps_;
  bool plus_one_;
  Parameter *weight_, *bias_ = nullptr;
};

}  // namespace mtrain::model
