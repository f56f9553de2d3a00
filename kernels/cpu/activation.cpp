#include "kernels/activation.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"
#include "kernels/cpu/float8_result.h"

namespace mtrain::kernels::cpu {
namespace {

void check_amax(const char* op, const Span& amax) {
  if (amax) check(op, "amax", amax, 1, DType::f32);
}

void check_swiglu(const SwigluForward& a) {
  check_holds("swiglu", "gate_up", a.gate_up_T2F, 2 * a.T * a.F);
  check_result("swiglu", "y", a.y_TF, a.T * a.F, a.gate_up_T2F.dtype, a.scale);
  check_amax("swiglu", a.amax);
}
void check_swiglu_backward(const SwigluBackward& a) {
  const DType dtype = a.gate_up_T2F.dtype;
  check_holds("swiglu backward", "gate_up", a.gate_up_T2F, 2 * a.T * a.F);
  check("swiglu backward", "dy", a.dy_TF, a.T * a.F, dtype);
  check_result("swiglu backward", "dgate_up", a.dgate_up_T2F, 2 * a.T * a.F, dtype, a.scale);
  if (a.y_TF) check_result("swiglu backward", "y", a.y_TF, a.T * a.F, dtype, a.y_scale);
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

bool written_in_8_bits(const SwigluForward& a) {
  if (!a.scale) return false;
  const FloatResult y(a.y_TF, a.T * a.F, a.gate_up_T2F.dtype, a.scale);
  run(SwigluForward{a.gate_up_T2F, y.get(), a.T, a.F, {}, {}, a.gate});
  y.quantize(a.T, a.F, a.amax);
  return true;
}

bool written_in_8_bits(const SwigluBackward& a) {
  if (!a.scale && !a.y_scale) return false;
  const DType dtype = a.gate_up_T2F.dtype;
  const FloatResult d(a.dgate_up_T2F, 2 * a.T * a.F, dtype, a.scale),
      y(a.y_TF, a.T * a.F, dtype, a.y_scale);
  run(SwigluBackward{a.gate_up_T2F,
                     a.dy_TF,
                     d.get(),
                     y.get(),
                     a.T,
                     a.F,
                     a.scale ? Span{} : a.amax,
                     {},
                     {},
                     a.gate});
  d.quantize(a.T, 2 * a.F, a.amax);
  y.quantize(a.T, a.F, {});
  return true;
}

}  // namespace

MT_DISPATCH_UNLESS(SwigluForward, check_swiglu, written_in_8_bits)
MT_DISPATCH_UNLESS(SwigluBackward, check_swiglu_backward, written_in_8_bits)
MT_DISPATCH(GeluForward, check_gelu)
MT_DISPATCH(GeluBackward, check_gelu_backward)

}  // namespace mtrain::kernels::cpu
