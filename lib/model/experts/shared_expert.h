// The shared expert of a layer: a gated MLP that sees every token, and whose output may be scaled
// by a sigmoid of the token.
#pragma once
#include <memory>
#include <string>

#include "model/config.h"
#include "model/linear.h"
#include "model/model_impls.h"
#include "model/recompute.h"
#include "ops/experts.h"

namespace mtrain::model {

class SharedExpert {
 public:
  SharedExpert(ParamStore& params, UnitId unit, const std::string& name, const GptConfig& c,
               const Recompute& recompute, const ModelImpls& impls);
  // Both push and pop step.stash. x_TH is kept by the caller.
  Tensor forward(Step& step, const Tensor& x_TH);
  Tensor backward(Step& step, const Tensor& x_TH, const Tensor& dy_TH);

 private:
  struct Gate {
    Tensor logit_T1;  // fp32
    ops::Routing routing;
    Tensor row_T1, choice_T;  // token t has row t
  };
  Gate gate_of(Step& step, const Tensor& x_TH) const;
  // Returns the gradient of the gate's input.
  Tensor gate_backward(Step& step, const Gate& gate, const Tensor& x_TH, const Tensor& y_TH,
                       const Tensor& dy_TH);
  struct Activations;

  const bool keep_outputs_, keep_activation_;
  std::unique_ptr<Linear> gate_up_, down_;
  Parameter* gate_ = nullptr;  // (1, H); null without a gate
};

}  // namespace mtrain::model
