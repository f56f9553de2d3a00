#pragma once
#include <string>

#include "model/config.h"
#include "model/parameters.h"
#include "model/step.h"
#include "model/tensor_parallel.h"
#include "ops/ops.h"

namespace mtrain {

// A value that is still the sum of two tensors: the next norm adds them while it reads them.
struct Hidden {
  Tensor x_TH;
  Tensor delta_TH;  // optional
};
Tensor materialize(Step& step, const Hidden& h);  // x + delta

class Norm {
 public:
  // Declares its parameters in `unit`.
  Norm(ParamStore& params, const std::string& unit, const std::string& name, const GptConfig& c,
       const TensorParallel& tensor);
  ops::NormResult forward(Step& step, const Hidden& h) const;
  // Gradient of the norm's input, plus dresidual (optional) in the same pass.
  Tensor backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                  const Tensor& dresidual_TH) const;
  ParamUnit* unit() const { return weight_->unit; }

 private:
  ops::NormWeights weights() const;
  ops::NormKind kind_;
  float eps_;
  Parameter *weight_, *bias_ = nullptr;
};

}  // namespace mtrain
