// Reductions. Deterministic: the order depends on the sizes alone.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct SumSquares {  // out[0] += sum of x^2, in fp64
  ConstSpan x;
  Span out;  // fp64, one element
};
struct ClipScale {  // norm = sqrt(sum_squares); scale = min(1, max_norm / (norm + 1e-6)), or 1
                    // where max_norm = 0; NaN where the norm, as fp32, or the loss is not finite
  ConstSpan sum_squares;  // fp64, one element
  ConstSpan loss;         // optional: fp64, one element
  Span norm, scale;       // fp32, one element each
  float max_norm;
};
struct ColumnSum {  // out[n] += sum over rows of x[t, n]: bias gradients
  ConstSpan x_TN;
  Span out_N;  // fp32
  int64_t T, N;
};
struct Sum {  // out[0] += sum of x, in fp64
  ConstSpan x;
  Span out;  // fp64, one element
};
struct FirstNonFinite {  // out[0] = index of the first NaN or Inf of x, or -1
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
