#include "kernels/rope.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"
#include "kernels/cpu/float8_result.h"

namespace mtrain::kernels::cpu {
namespace {

void check_rope(const Rope& a) {
  MT_CHECK(a.R > 0 && a.first >= 0 && a.first + 2 * a.R <= a.D,
           "rope: {} pairs of lanes from {} in heads of {}", a.R, a.first, a.D);
  MT_CHECK(a.token_stride >= a.heads * a.D, "rope: token stride {} < {} heads * {}", a.token_stride,
           a.heads, a.D);
  if (a.T > 0) check_holds("rope", "x", a.x, (a.T - 1) * a.token_stride + a.heads * a.D);
  check("rope", "cos", a.cos_PR, 0, DType::f32);
  check("rope", "sin", a.sin_PR, a.cos_PR.count, DType::f32);
  check_indices("rope", "position", a.position_T, a.T, a.cos_PR.count / a.R);
}

bool with_amax(const Rope& a) {
  if (!a.amax) return false;
  check("rope", "amax", a.amax, 1, DType::f32);
  Rope args = a;
  args.amax = {};
  run(args);
  raise_amax(a.amax, a.x, a.T, a.heads * a.D, a.token_stride);
  return true;
}

}  // namespace

MT_DISPATCH_UNLESS(Rope, check_rope, with_amax)

}  // namespace mtrain::kernels::cpu
