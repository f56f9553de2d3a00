#include "kernels/reduce.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_sum_squares(const SumSquares& a) {
  check("sum of squares", "out", a.out, 1, DType::f64);
}
void check_sum(const Sum& a) { check("sum", "out", a.out, 1, DType::f64); }
void check_column_sum(const ColumnSum& a) {
  check_holds("column sum", "x", a.x_TN, a.T * a.N);
  check("column sum", "out", a.out_N, a.N, DType::f32);
}
void check_first_non_finite(const FirstNonFinite& a) {
  check("first non-finite", "out", a.out, 1, DType::i64);
}

}  // namespace

MT_DISPATCH(SumSquares, check_sum_squares)
MT_DISPATCH(Sum, check_sum)
MT_DISPATCH(ColumnSum, check_column_sum)
MT_DISPATCH(FirstNonFinite, check_first_non_finite)

void run(const ClipScale& a) {
  check("clip", "sum_squares", a.sum_squares, 1, DType::f64);
  check("clip", "norm", a.norm, 1, DType::f32);
  check("clip", "scale", a.scale, 1, DType::f32);
  if (a.loss) check("clip", "loss", a.loss, 1, DType::f64);
  if (a.arguments_in_memory) check("clip", "arguments", a.arguments_in_memory, 2, DType::f64);
  const double* in_memory = a.arguments_in_memory.as<double>();
  const double unscale = in_memory ? in_memory[0] : a.unscale;
  const double limit = in_memory ? in_memory[1] : a.limit;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const double* squares = a.sum_squares.as<double>();
  const double norm = std::sqrt(squares[0]) * unscale;
  const bool copies_finite = a.sum_squares.count < 2 || std::isfinite(squares[1]);
  *a.norm.as<float>() = copies_finite ? float(norm) : kNaN;
  // The fp32 norm decides, since the host reads it: host and optimizer then never disagree.
  const float seen = *a.norm.as<float>();
  if (!std::isfinite(seen) || double(seen) > limit ||
      (a.loss && !std::isfinite(*a.loss.as<double>()))) {
    *a.scale.as<float>() = kNaN;
    return;
  }
  const double fitting = double(a.max_norm) / (norm + 1e-6);
  *a.scale.as<float>() = float(unscale * (a.max_norm == 0 || fitting > 1 ? 1.0 : fitting));
}

}  // namespace mtrain::kernels::cpu
