#pragma once
#include <string>

#include "model/config.h"
#include "model/param/parameters.h"
#include "model/step.h"
#include "model/tensor_parallel.h"
#include "ops/ops.h"

namespace mtrain::model {

// The residual stream between two segments: a value that is still the sum of two tensors, which the
// next norm adds while it reads them.
struct Hidden {
  Tensor x_TH;
  Tensor delta_TH;  // optional
};
Tensor materialize(Step& step, const Hidden& h);  // x + delta

class Norm {
 public:
  // Declares its parameters in `unit`.
  Norm(ParamStore& params, UnitId unit, const std::string& name, const GptConfig& c,
       const TensorParallel& tensor);
  ops::NormResult forward(Step& step, const Hidden& h) const;
  // Returns the gradient of the norm's input, to which the same pass adds dresidual_TH (optional).
  Tensor backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                  const Tensor& dresidual_TH) const;
  ParamUnit* unit() const { return weight_->unit; }

 private:
  ops::NormWeights weights() const;
  ops::NormKind kind_;
  float eps_;
  Parameter *weight_, *bias_ = nullptr;
};

}  // namespace mtrain::model
