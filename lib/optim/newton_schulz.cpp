#include "optim/newton_schulz.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/muon.h"
#include "ops/reduce.h"

namespace mtrain::optim {

namespace {

// Returns factor * x as a new fp32 tensor.
Tensor scaled(Stream& stream, const Tensor& x, double factor) {
  const Tensor y = Tensor::empty(stream, x.shape(), DType::f32, device::MemoryCategory::buffers);
  ops::cast(stream, x, y);
  ops::scale(stream, y, float(factor));
  return y;
}

}  // namespace

double NewtonSchulz::flops(int64_t rows, int64_t columns) const {
  const auto small = double(std::min(rows, columns)), large = double(std::max(rows, columns));
  return double(steps) * 2 * small * small * (2 * large + small);
}

void orthogonalize(Stream& stream, const NewtonSchulz& o, const Tensor& x_RC) {
  const bool wide = x_RC.dim(0) <= x_RC.dim(1);
  const auto operand = [&](const Tensor& t) {
    return ops::in_dtype(stream, t, o.gemm, device::MemoryCategory::buffers);
  };
  const Tensor total = Tensor::empty(stream, {1}, DType::f64, device::MemoryCategory::buffers);
  ops::fill(stream, total, 0);
  ops::sum_squares(stream, x_RC, total);
  ops::muon_normalize(stream, x_RC, total, float(o.eps));
  Tensor x = x_RC;
  for (int64_t i = 0; i < o.steps; ++i) {
    const auto at = o.coefficients.begin() + (o.coefficients.size() > 3 ? 3 * i : 0);
    const double a = at[0], b = at[1], c = at[2];
    // All terms read X and G as the GEMMs do. A rounded X beside an exact one would add the error
    // of the GEMMs alone, which is larger than that of the sum.
    const Tensor in = operand(x);
    const Tensor gram = operand(
        ops::matmul(stream, "matmul_muon_gram", in, in, {.a = !wide, .b = wide}, DType::f32));
    // b G + c G^2 = c (b / c G + G^2); the iteration multiplies X by it.
    const Tensor factor = scaled(stream, gram, c == 0 ? b : b / c);
    if (c != 0) {
      ops::matmul_into(stream, "matmul_muon_square", gram, gram, {}, factor, true);
      ops::scale(stream, factor, float(c));
    }
    const Tensor next = scaled(stream, in, a), by = operand(factor);
    ops::matmul_into(stream, "matmul_muon_iterate", wide ? by : in, wide ? in : by, {}, next, true);
    x = next;
  }
  if (o.steps > 0) ops::cast(stream, x, x_RC);
}

}  // namespace mtrain::optim
