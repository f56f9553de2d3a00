#include "kernels/activation.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_amax(const char* op, const Span& amax) {
  if (amax) check(op, "amax", amax, 1, DType::f32);
}

void check_swiglu(const SwigluForward& a) {
  check_holds("swiglu", "gate_up", a.gate_up_T2F, 2 * a.T * a.F);
  check("swiglu", "y", a.y_TF, a.T * a.F, a.gate_up_T2F.dtype);
  check_amax("swiglu", a.amax);
}
void check_swiglu_backward(const SwigluBackward& a) {
  const DType dtype = a.gate_up_T2F.dtype;
  check_holds("swiglu backward", "gate_up", a.gate_up_T2F, 2 * a.T * a.F);
  check("swiglu backward", "dy", a.dy_TF, a.T * a.F, dtype);
  check("swiglu backward", "dgate_up", a.dgate_up_T2F, 2 * a.T * a.F, dtype);
  if (a.y_TF) check("swiglu backward", "y", a.y_TF, a.T * a.F, dtype);
  check_amax("swiglu backward", a.amax);
}
void check_gelu(const GeluForward& a) {
  check_holds("gelu", "x", a.x, a.count);
  check("gelu", "y", a.y, a.count, a.x.dtype);
  check_amax("gelu", a.amax);
}
void check_gelu_backward(const GeluBackward& a) {
  check_holds("gelu backward", "x", a.x, a.count);
  check("gelu backward", "dy", a.dy, a.count, a.x.dtype);
  check("gelu backward", "dx", a.dx, a.count, a.x.dtype);
  if (a.y) check("gelu backward", "y", a.y, a.count, a.x.dtype);
  check_amax("gelu backward", a.amax);
}

}  // namespace

MT_DISPATCH(SwigluForward, check_swiglu)
MT_DISPATCH(SwigluBackward, check_swiglu_backward)
MT_DISPATCH(GeluForward, check_gelu)
MT_DISPATCH(GeluBackward, check_gelu_backward)

}  // namespace mtrain::kernels::cpu
