// y = x W^T + b. The interface that tensor parallelism implements; forward, input gradient and
// weight gradient are separate calls, so that schedules and overlap can move the last.
#pragma once
#include <memory>
#include <string>

#include "model/parameters.h"
#include "model/step.h"

namespace mtrain {

class Linear {
 public:
  virtual ~Linear() = default;
  virtual Tensor forward(Step& step, const Tensor& x_TI) = 0;
  virtual Tensor dgrad(Step& step, const Tensor& dy_TO) = 0;
  virtual void wgrad(Step& step, const Tensor& x_TI,
                     const Tensor& dy_TO) = 0;  // pushes to step.wgrad
};

// Names of the three matmuls in profiles and traces; string literals.
struct LinearNames {
  const char *fwd, *dgrad, *wgrad;
};

struct LinearSpec {
  std::string unit, name;  // parameters are `name`.weight (O, I) and `name`.bias (O)
  int64_t I, O;
  bool bias;
  float std;  // of the initial weight
  LinearNames names;
};
std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec);

}  // namespace mtrain
