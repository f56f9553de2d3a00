// The shared expert of a layer: a gated MLP that sees every token, and whose output may be scaled
// by a sigmoid of the token.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/linear.h"
#include "model/model_impls.h"
#include "model/recompute.h"
#include "ops/experts.h"
#include "spec/model_spec.h"

namespace mtrain::model {

struct SharedExpertActivations {
  struct Gate {
    Tensor logit_T1;  // fp32
    ops::Routing routing;
    Tensor row_T1, choice_T;  // token t has row t
  };

  Tensor up_TF;         // gate | up; absent if it is computed again
  Tensor y_TH;          // the down projection's output; absent without a gate, or if computed again
  LinearOperand up_in;  // without its value, x_TH
  LinearOperand down_in;  // without its value, the activation's output, if it is computed again
  Gate gate;
  // In backward, between its two parts: the gradients of gate | up and of the gate's input.
  ops::Written dup_TF;
  Tensor dx_gate_TH;
};

// Forward and backward each have two parts, between which other work may be enqueued: up() and
// down(), down_backward() and up_backward(). x_TH is kept by the caller.
class SharedExpert {
 public:
  using Activations = SharedExpertActivations;

  // Declares the parameters in `unit`: those of `name` in `tensors`.
  SharedExpert(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
               const std::string& name, const spec::ModelSpec& model, const spec::Experts& experts,
               const Recompute& recompute, const ModelImpls& impls);
  Activations up(Step& step, const Tensor& x_TH);
  // Returns the output, and pushes to step.stash the activations that backward pops.
  Tensor down(Step& step, const Tensor& x_TH, Activations a);

  void down_backward(Step& step, const Tensor& x_TH, const Tensor& dy_TH, Activations& a);
  // Returns the gradient of x.
  Tensor up_backward(Step& step, const Tensor& x_TH, Activations& a);

 private:
  Tensor up_forward(Step& step, const Tensor& x_TH, Activations& a);
  using Gate = Activations::Gate;
  Gate gate_of(Step& step, const Tensor& x_TH) const;
  // Returns the gradient of the gate's input.
  Tensor gate_backward(Step& step, const Gate& gate, const Tensor& x_TH, const Tensor& y_TH,
                       const Tensor& dy_TH);

  const bool keep_outputs_, keep_activation_;
  const ops::GateFunction function_;
  std::unique_ptr<Linear> gate_up_, down_;
  Parameter* gate_ = nullptr;  // (1, H); null without a gate
};

}  // namespace mtrain::model
