// Gated and plain activations of the MLP; kernels/activation.h has the rules.
#pragma once
#include "kernels/activation.h"
#include "ops/operand.h"
#include "ops/operation.h"

namespace mtrain::ops {

using kernels::GateFunction;
// SwiGLU, or GEGLU with another gate function. The result is plain or quantized.
Written swiglu(Stream& stream, const Tensor& gate_up_T2F, const Destination& to = {},
               GateFunction gate = GateFunction::silu);
struct ActivationGradient {
  Written dx;  // plain or quantized
  Written y;   // the forward's output, if it is recomputed
};
// Returns dL/dgate_up. With `recomputed`, recomputes the forward's output for that destination; a
// plain output overwrites dy_TF.
ActivationGradient swiglu_backward(Stream& stream, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                                   const Destination& to = {},
                                   const Destination* recomputed = nullptr,
                                   GateFunction gate = GateFunction::silu);
// gelu's kernels only find maxima: they ignore a destination that quantizes.
Written gelu(Stream& stream, const Tensor& x, bool tanh, const Destination& to = {});
// Returns dL/dx. Writes the forward's output into `y` (optional), which may be dy.
Written gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& y, bool tanh,
                      const Destination& to = {});

}  // namespace mtrain::ops
