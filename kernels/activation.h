// Gated and plain activations of the MLP. The operands of a call are all of one float type. `amax`
// is optional, fp32, one element: it becomes max(amax, largest finite |x|), where x is the
// forward's y or the backward's gradient. Where a scale (fp32, one element) is given, the result
// that it belongs to is f8e4m3 or f8e5m2: what Quantize (kernels/fp8.h) makes of the float result.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// The function of a gated activation's gate: silu in SwiGLU, gelu in its tanh form in GEGLU.
enum class GateFunction { silu, gelu_tanh };

// y = silu(gate) * up (Shazeer 2020), or with another gate function y = f(gate) * up; each row of
// gate_up holds gate, then up.
struct SwigluForward {
  ConstSpan gate_up_T2F;
  Span y_TF;
  int64_t T, F;
  Span amax = {};
  ConstSpan scale = {};  // optional: of y
  GateFunction gate = GateFunction::silu;
};
struct SwigluBackward {
  ConstSpan gate_up_T2F, dy_TF;
  Span dgate_up_T2F;  // may be gate_up_T2F
  // Optional: gets the forward's output again, for the weight gradient that follows; may be dy_TF.
  Span y_TF;
  int64_t T, F;
  Span amax = {};
  // Optional: of dgate_up, and of y. What is in 8 bits may be no other operand.
  ConstSpan scale = {}, y_scale = {};
  GateFunction gate = GateFunction::silu;
};
// y = gelu(x): the tanh approximation, or with tanh = false the exact form by erf.
struct GeluForward {
  ConstSpan x;
  Span y;
  int64_t count;
  bool tanh = true;
  Span amax = {};
};
struct GeluBackward {
  ConstSpan x, dy;
  Span dx;  // may be x or dy
  Span y;   // optional: gets the forward's output again; may be dy
  int64_t count;
  bool tanh = true;
  Span amax = {};
};

namespace cpu {
void run(const SwigluForward&);
void run(const SwigluBackward&);
void run(const GeluForward&);
void run(const GeluBackward&);
}  // namespace cpu
namespace cuda {
void run(const SwigluForward&, CUstream_st*);
void run(const SwigluBackward&, CUstream_st*);
void run(const GeluForward&, CUstream_st*);
void run(const GeluBackward&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
