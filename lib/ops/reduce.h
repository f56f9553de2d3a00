// Sums and other reductions, in a fixed order.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

// The first two add to `total`, one fp64 element; column_sum adds to out_N (fp32).
void sum_squares(Stream& stream, const Tensor& x, const Tensor& total);
void sum(Stream& stream, const Tensor& x, const Tensor& total);
void column_sum(Stream& stream, const Tensor& x_TN, const Tensor& out_N);
// Returns the index of the first NaN or infinity, or -1, as one int64 element.
Tensor first_non_finite(Stream& stream, const Tensor& x);
struct Clip {
  Tensor norm, scale;  // fp32, one element each
};
// Returns the norm and the factor that clips it to max_norm, as kernels::ClipScale defines them.
// The factor is NaN if the norm or `loss` (fp64, one element, optional) is not finite. `unscale_1`
// (the same) replaces `unscale`, and is read when the launch runs.
Clip clip_scale(Stream& stream, const Tensor& sum_squares, const Tensor& loss, float max_norm,
                double unscale = 1, const Tensor& unscale_1 = {});

}  // namespace mtrain::ops
