#include "kernels/adamw.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_adamw(const AdamW& a) {
  if (a.master) check("adamw", "master", a.master, 0, DType::f32);
  const DType moments = a.m.dtype == DType::bf16 ? DType::bf16 : DType::f32;
  check("adamw", "m", a.m, a.count(), moments);
  check("adamw", "v", a.v, a.count(), moments);
  check("adamw", "grad", a.grad, a.count(), DType::f32);
  if (a.param || !a.master) {
    check_holds("adamw", "param", a.param, a.count());
    MT_CHECK(a.param.dtype == DType::bf16 || (a.param.dtype == DType::f16 && a.master),
             "adamw: param is {}, {} master weights", dtype_name(a.param.dtype),
             a.master ? "beside" : "without");
  }
  if (a.grad_scale) check("adamw", "grad_scale", a.grad_scale, 1, DType::f32);
  MT_CHECK(a.step >= 1, "adamw: step {} must count from 1", a.step);
}

}  // namespace

MT_DISPATCH(AdamW, check_adamw)

}  // namespace mtrain::kernels::cpu
