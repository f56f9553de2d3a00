// Tensors in 8 bits with one scale each: q is x * scale rounded to nearest even, and stands for
// q * inverse. All of it is deterministic: a maximum does not depend on the order.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// amax[0] = the largest finite |x|, or 0 where there is none.
struct Amax {
  ConstSpan x;                 // fp32 or bf16
  Span amax;                   // fp32, one element
  Span scale, inverse;         // optional, fp32, one element each: x's scale for `type`
  DType type = DType::f8e4m3;  // f8e4m3 or f8e5m2
  int margin = 0;              // scale = largest_float8(type) / (amax 2^margin); 1 where amax = 0
};

// Writes x in 8 bits, and its transpose. Either result is optional, and x is read once for both.
struct Quantize {
  ConstSpan x_TN;   // fp32 or bf16
  ConstSpan scale;  // fp32, one element
  // f8e4m3 or f8e5m2. Numbers beyond the type's range become its largest number, and those that are
  // not finite become NaN.
  Span y_TN;
  // The transpose: rows of `stride` elements, with zeros behind the T-th. `stride` is a multiple of
  // 16, and the address lies on a 16-byte border.
  Span y_NT;
  Span amax;  // optional, fp32, one element: becomes the largest finite |x| where that is larger
  int64_t T, N, stride = 0;
};

// Delayed scaling of C tensors (Micikevicius et al. 2022): their maxima of this step go into their
// histories, and the histories give the scales of the next step. A scale stays as it is where the
// amax that decides it is 0.
struct UpdateScales {
  Span amax_C;          // fp32; becomes 0
  Span history_CL;      // fp32, a ring that holds the amaxes of L steps
  int64_t C, L, place;  // `place` in [0, L) is this step's place in the ring
  bool most_recent;     // the last amax decides, and not the largest of the history
  DType type;
  int margin;
  Span scale_C, inverse_C;
};

namespace cpu {
void run(const Amax&);
void run(const Quantize&);
void run(const UpdateScales&);
}  // namespace cpu
namespace cuda {
void run(const Amax&, CUstream_st*);
void run(const Quantize&, CUstream_st*);
void run(const UpdateScales&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
