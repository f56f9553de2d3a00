#include "kernels/reduce.h"

#include "ops/enqueue.h"
#include "ops/ops.h"

MT_KERNEL(SumSquares)
MT_KERNEL(Sum)
MT_KERNEL(ColumnSum)
MT_KERNEL(FirstNonFinite)
MT_KERNEL(ClipScale)

namespace mtrain::ops {

void sum_squares(Stream& on, const Tensor& x, const Tensor& total) {
  MT_DTYPE("sum_squares", total, DType::f64);
  enqueue(on, {.name = "sum_squares", .reads = {x, total}, .writes = {total}},
          kernels::SumSquares{.x = x, .out = total});
}

void sum(Stream& on, const Tensor& x, const Tensor& total) {
  MT_DTYPE("sum", total, DType::f64);
  enqueue(on, {.name = "sum", .reads = {x, total}, .writes = {total}},
          kernels::Sum{.x = x, .out = total});
}

void column_sum(Stream& on, const Tensor& x_TN, const Tensor& out_N) {
  MT_SHAPE("column_sum", out_N, {x_TN.dim(1)});
  enqueue(on, {.name = "column_sum", .reads = {x_TN, out_N}, .writes = {out_N}},
          kernels::ColumnSum{.x_TN = x_TN, .out_N = out_N, .T = x_TN.dim(0), .N = x_TN.dim(1)});
}

Tensor first_non_finite(Stream& on, const Tensor& x) {
  Tensor at = Tensor::empty(on, {1}, DType::i64, MemoryCategory::buffers);
  enqueue(on, {.name = "first_non_finite", .reads = {x}, .writes = {at}},
          kernels::FirstNonFinite{.x = x, .out = at});
  return at;
}

Clip clip_scale(Stream& on, const Tensor& sum_squares, const Tensor& loss, float max_norm) {
  MT_DTYPE("clip_scale", sum_squares, DType::f64);
  if (loss) MT_DTYPE("clip_scale", loss, DType::f64);
  Clip c{Tensor::empty(on, {1}, DType::f32, MemoryCategory::buffers),
         Tensor::empty(on, {1}, DType::f32, MemoryCategory::buffers)};
  enqueue(on, {.name = "clip_scale", .reads = {sum_squares, loss}, .writes = {c.norm, c.scale}},
          kernels::ClipScale{.sum_squares = sum_squares,
                             .loss = loss,
                             .norm = c.norm,
                             .scale = c.scale,
                             .max_norm = max_norm});
  return c;
}

}  // namespace mtrain::ops
