// Reductions. They are deterministic: the order of a sum depends only on the sizes.
#pragma once
#include <limits>

#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// out[0] += the sum of x^2, in fp64.
struct SumSquares {
  ConstSpan x;
  Span out;  // fp64, one element
};
// norm = unscale * sqrt(sum_squares), or NaN if a copy is not finite. scale = unscale * min(1,
// max_norm / (norm + 1e-6)), or unscale if max_norm = 0. It is NaN if the norm (in fp32) or the
// loss is not finite, or if the norm is above `limit`.
struct ClipScale {
  // fp64: the sum over the gradients that count. Optionally a second element: the sum over
  // replicated copies of them, which is only checked to be finite.
  ConstSpan sum_squares;
  ConstSpan loss;    // optional: fp64, one element
  Span norm, scale;  // fp32, one element each
  float max_norm;
  double unscale = 1;  // 1 / the scale of the loss, and thus of the gradients
  double limit = std::numeric_limits<double>::infinity();
  // Optional, two fp64: replace `unscale` and `limit`, and are read when the launch runs.
  ConstSpan arguments_in_memory = {};
};
// out[n] += the sum of x[t, n] over t: the gradient of a bias.
struct ColumnSum {
  ConstSpan x_TN;
  Span out_N;  // fp32
  int64_t T, N;
};
// out[0] += the sum of x, in fp64.
struct Sum {
  ConstSpan x;
  Span out;  // fp64, one element
};
// out[0] = the index of the first NaN or infinity in x, or -1.
struct FirstNonFinite {
  ConstSpan x;
  Span out;  // int64, one element
};

namespace cpu {
void run(const SumSquares&);
void run(const ClipScale&);
void run(const ColumnSum&);
void run(const Sum&);
void run(const FirstNonFinite&);
}  // namespace cpu
namespace cuda {
void run(const SumSquares&, CUstream_st*);
void run(const ClipScale&, CUstream_st*);
void run(const ColumnSum&, CUstream_st*);
void run(const Sum&, CUstream_st*);
void run(const FirstNonFinite&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
