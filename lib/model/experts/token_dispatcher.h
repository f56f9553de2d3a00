// The interface that brings tokens to the ranks and rows of their experts, and back. Its default is
// that of a rank which has all experts.
#pragma once
#include <any>
#include <memory>

#include "model/step.h"

namespace mtrain::model {

// The rows of this rank's experts: expert e has the rows [first[e], first[e + 1]).
struct DispatchedTokens {
  Tensor x_RH;
  Tensor weight_R;  // fp32: the router's weight of each row
  Tensor first_E1;  // int32
  std::any route;   // what the dispatcher needs for the calls after dispatch()
};
struct DispatchedGradients {
  Tensor dx_TH, dweight_TK;
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  // Each token goes to its K experts, with its weights for them (fp32).
  virtual DispatchedTokens dispatch(Step& step, const Tensor& x_TH, const Tensor& expert_TK,
                                    const Tensor& weight_TK) = 0;
  // Returns for each token the sum of its experts' outputs, in the order of k.
  virtual Tensor combine(Step& step, const std::any& route, const Tensor& y_RH) = 0;
  // Returns the gradient of combine()'s y_RH.
  virtual Tensor combine_backward(Step& step, const std::any& route, const Tensor& dy_TH) = 0;
  // Returns the gradients of dispatch()'s tokens and weights.
  virtual DispatchedGradients dispatch_backward(Step& step, const std::any& route,
                                                const Tensor& dx_RH, const Tensor& dweight_R) = 0;
};

// `experts` is the number of all experts, which this rank has.
std::unique_ptr<TokenDispatcher> local_dispatcher(int64_t experts);

}  // namespace mtrain::model
