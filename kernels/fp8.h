// Tensors in 8 bits with one scale each: q = x * scale rounded to nearest even, which stands for
// q * inverse. Deterministic: a maximum has no order.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// amax[0] = the largest |x|, 0 of none; what is not finite does not count.
struct Amax {
  ConstSpan x;                 // fp32 or bf16
  Span amax;                   // fp32, one element
  Span scale, inverse;         // optional, fp32, one element each: written for x in this type
  DType type = DType::f8e4m3;  // f8e4m3 or f8e5m2
  int margin = 0;              // scale = largest_float8(type) / (amax 2^margin); 1 where amax = 0
};

// Either result is optional, and x is read once for both.
struct Quantize {
  ConstSpan x_TN;   // fp32 or bf16
  ConstSpan scale;  // fp32, one element
  Span y_TN;  // f8e4m3 or f8e5m2. Beyond the type's range its largest number; what is not finite
              // becomes NaN
  Span y_NT;  // the transpose, each row of `stride` elements: zeros behind the T-th. A multiple of
              // 16, and the address on a 16-byte border
  Span amax;  // optional, fp32, one element: becomes the largest finite |x| where that is larger
  int64_t T, N, stride = 0;
};

// Delayed scaling of C tensors: what they had in this step goes into their history, and that gives
// the scales of the next step (Micikevicius et al. 2022). A scale whose amaxes are 0 stays.
struct UpdateScales {
  Span amax_C;          // fp32; 0 afterwards
  Span history_CL;      // fp32, the amaxes of L steps in a ring
  int64_t C, L, place;  // in [0, L): of this step in the ring
  bool most_recent;     // the last amax decides; else the largest of the history
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
