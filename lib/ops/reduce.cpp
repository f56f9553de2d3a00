#include "ops/reduce.h"

#include "kernels/reduce.h"
#include "ops/enqueue.h"

MT_KERNEL(SumSquares)
MT_KERNEL(Sum)
MT_KERNEL(ColumnSum)
MT_KERNEL(FirstNonFinite)
MT_KERNEL(ClipScale)

namespace mtrain::ops {

void sum_squares(Stream& stream, const Tensor& x, const Tensor& total) {
  MT_DTYPE("sum_squares", total, DType::f64);
  enqueue(stream, "sum_squares", kernels::SumSquares{.x = x, .out = total});
}

void sum(Stream& stream, const Tensor& x, const Tensor& total) {
  MT_DTYPE("sum", total, DType::f64);
  enqueue(stream, "sum", kernels::Sum{.x = x, .out = total});
}

void column_sum(Stream& stream, const Tensor& x_TN, const Tensor& out_N) {
  MT_SHAPE("column_sum", out_N, {x_TN.dim(1)});
  enqueue(stream, "column_sum",
          kernels::ColumnSum{.x_TN = x_TN, .out_N = out_N, .T = x_TN.dim(0), .N = x_TN.dim(1)});
}

Tensor first_non_finite(Stream& stream, const Tensor& x) {
  Tensor at = Tensor::empty(stream, {1}, DType::i64, device::MemoryCategory::buffers);
  enqueue(stream, "first_non_finite", kernels::FirstNonFinite{.x = x, .out = at});
  return at;
}

Clip clip_scale(Stream& stream, const Tensor& sum_squares, const Tensor& loss, float max_norm,
                const ClipLimits& limits) {
  MT_DTYPE("clip_scale", sum_squares, DType::f64);
  if (loss) MT_DTYPE("clip_scale", loss, DType::f64);
  Clip c{Tensor::empty(stream, {1}, DType::f32, device::MemoryCategory::buffers),
         Tensor::empty(stream, {1}, DType::f32, device::MemoryCategory::buffers)};
  enqueue(stream, "clip_scale",
          kernels::ClipScale{.sum_squares = sum_squares,
                             .loss = loss,
                             .norm = c.norm,
                             .scale = c.scale,
                             .max_norm = max_norm,
                             .unscale = limits.unscale,
                             .limit = limits.norm,
                             .arguments_in_memory = limits.in_memory_2});
  return c;
}

}  // namespace mtrain::ops
