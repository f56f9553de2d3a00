// The gated activation of experts: each row is multiplied by the router's weight for its token
// before the down projection. Therefore the outputs of the experts need not be kept for the
// weight's gradient. Operands all have one float type; weights and their gradients are fp32.
#pragma once
#include "base/span.h"
#include "kernels/activation.h"

struct CUstream_st;

namespace mtrain::kernels {

// y = weight f(gate) up, where f is the gate function; each row of gate_up holds gate, then up.
struct WeightedSwigluForward {
  ConstSpan gate_up_R2F, weight_R;
  Span y_RF;
  int64_t R, F;
  GateFunction gate = GateFunction::silu;
};
struct WeightedSwigluBackward {
  ConstSpan gate_up_R2F, weight_R, dy_RF;
  Span dgate_up_R2F;  // may be gate_up_R2F
  Span dweight_R;     // sum over a row of dy f(gate) up
  // Optional: gets the recomputed output of the forward, for the weight gradient that follows; may
  // be dy_RF.
  Span y_RF;
  int64_t R, F;
  GateFunction gate = GateFunction::silu;
};

namespace cpu {
void run(const WeightedSwigluForward&);
void run(const WeightedSwigluBackward&);
}  // namespace cpu
namespace cuda {
void run(const WeightedSwigluForward&, CUstream_st*);
void run(const WeightedSwigluBackward&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
