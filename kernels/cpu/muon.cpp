#include "kernels/muon.h"

#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels {

float keep_of(const MuonUpdate& a) { return std::fma(-a.lr, a.weight_decay, 1.0f); }

}  // namespace mtrain::kernels

namespace mtrain::kernels::cpu {
namespace {

void check_direction(const MuonDirection& a) {
  check("muon_direction", "momentum", a.momentum, a.grad.count, DType::f32);
  check_dtype("muon_direction", "grad", a.grad, DType::f32);
  if (a.grad_scale) check("muon_direction", "grad_scale", a.grad_scale, 1, DType::f32);
}
void check_normalize(const MuonNormalize& a) {
  check_dtype("muon_normalize", "x", a.x, DType::f32);
  check("muon_normalize", "sum_squares", a.sum_squares, 1, DType::f64);
  MT_CHECK(a.eps > 0, "muon_normalize: eps {}", a.eps);
}
void check_update(const MuonUpdate& a) {
  check_dtype("muon_update", "master", a.master, DType::f32);
  check("muon_update", "direction", a.direction, a.master.count, DType::f32);
  if (a.param) check_holds("muon_update", "param", a.param, a.master.count);
  if (a.factors_in_memory) check("muon_update", "factors", a.factors_in_memory, 2, DType::f32);
  if (a.grad_scale) check("muon_update", "grad_scale", a.grad_scale, 1, DType::f32);
}

}  // namespace

MT_DISPATCH(MuonDirection, check_direction)
MT_DISPATCH(MuonNormalize, check_normalize)
MT_DISPATCH(MuonUpdate, check_update)

}  // namespace mtrain::kernels::cpu
