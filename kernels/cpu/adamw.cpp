#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels {

AdamWFactors factors_of(const AdamW& a) {
  const auto correction = [&](float beta) { return 1.0 - std::pow(double(beta), double(a.step)); };
  return {.step_size = float(a.lr / correction(a.beta1)),
          .v_correction = float(1.0 / correction(a.beta2)),
          .keep = a.decoupled_decay ? std::fma(-a.lr, a.weight_decay, 1.0f) : 1.0f};
}

}  // namespace mtrain::kernels

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
  if (a.factors_in_memory) check("adamw", "factors", a.factors_in_memory, 3, DType::f32);
  if (a.keys_in_memory) check("adamw", "keys", a.keys_in_memory, 2, DType::i64);
  MT_CHECK(a.step >= 1, "adamw: step {} must count from 1", a.step);
}

}  // namespace

MT_DISPATCH(AdamW, check_adamw)

}  // namespace mtrain::kernels::cpu
