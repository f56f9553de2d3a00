// Sums and other reductions, in a fixed order.
#pragma once
#include <limits>

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
struct ClipLimits {
  double unscale = 1;                                     // 1 / the loss scale
  double norm = std::numeric_limits<double>::infinity();  // the largest norm of an update
  // Optional, fp64 (2): replaces both, and is read when the launch runs.
  Tensor in_memory_2 = {};
};
// Returns the norm and the factor that clips it to max_norm, as kernels::ClipScale defines them.
// The factor is NaN if the norm or `loss` (fp64, one element, optional) is not finite, or if the
// norm is above its limit.
Clip clip_scale(Stream& stream, const Tensor& sum_squares, const Tensor& loss, float max_norm,
                const ClipLimits& limits = {});

}  // namespace mtrain::ops
