#include "kernels/weighted_swiglu.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_forward(const WeightedSwigluForward& a) {
  const char* op = "weighted swiglu";
  check_holds(op, "gate_up", a.gate_up_R2F, 2 * a.R * a.F);
  check(op, "weight", a.weight_R, a.R, DType::f32);
  check(op, "y", a.y_RF, a.R * a.F, a.gate_up_R2F.dtype);
}
void check_backward(const WeightedSwigluBackward& a) {
  const char* op = "weighted swiglu backward";
  const DType dtype = a.gate_up_R2F.dtype;
  check_holds(op, "gate_up", a.gate_up_R2F, 2 * a.R * a.F);
  check(op, "weight", a.weight_R, a.R, DType::f32);
  check(op, "dy", a.dy_RF, a.R * a.F, dtype);
  check(op, "dgate_up", a.dgate_up_R2F, 2 * a.R * a.F, dtype);
  check(op, "dweight", a.dweight_R, a.R, DType::f32);
  if (a.y_RF) check(op, "y", a.y_RF, a.R * a.F, dtype);
}

}  // namespace

MT_DISPATCH(WeightedSwigluForward, check_forward)
MT_DISPATCH(WeightedSwigluBackward, check_backward)

}  // namespace mtrain::kernels::cpu
