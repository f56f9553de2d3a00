// Gated and plain activations of the MLP. The operands of a call are all of one float type. `amax`
// is optional, fp32, one element: it becomes max(amax, largest finite |x|), where x is the
// forward's y or the backward's gradient. If a scale (fp32, one element) is given, the result that
// it belongs to is f8e4m3 or f8e5m2: the float result, converted as by Quantize (kernels/fp8.h).
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// The function of a gated activation's gate: silu in SwiGLU, gelu in its tanh form in GEGLU.
enum class GateFunction { silu, gelu_tanh };

// y = silu(gate) * up (Shazeer 2020), or y = f(gate) * up with another gate function f. Each row of
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
  // Optional: gets the recomputed output of the forward, for the weight gradient that follows; may
  // be dy_TF.
  Span y_TF;
  int64_t T, F;
  Span amax = {};
  // Optional: the scales of dgate_up and of y. An 8-bit result must not share memory with another
  // operand.
  ConstSpan scale = {}, y_scale = {};
  GateFunction gate = GateFunction::silu;
};
// y = gelu(x): the tanh approximation or, with tanh = false, the exact form by erf.
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
  Span y;   // optional: gets the recomputed output of the forward; may be dy
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
