// 8-bit tensors with one scale each: q is x * scale rounded to nearest even, and represents the
// value q * inverse. All results are deterministic, since a maximum does not depend on the order.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// amax[0] = the largest finite |x|, or 0 if there is none.
struct Amax {
  ConstSpan x;                 // fp32, bf16 or fp16
  Span amax;                   // fp32, one element
  Span scale, inverse;         // optional, fp32, one element each: the scale of x for `type`
  DType type = DType::f8e4m3;  // f8e4m3 or f8e5m2
  int margin = 0;              // scale = largest_float8(type) / (amax 2^margin); 1 if amax = 0
};

// Computes the same scale as Amax for a tensor whose writer has stored the largest |x| in `amax`.
// Resets `amax` to 0 for the next tensor.
struct ScaleFromAmax {
  Span amax, scale, inverse;  // fp32, one element each
  DType type = DType::f8e4m3;
  int margin = 0;
};

// Writes x in 8 bits, and its transpose. Either result is optional, and x is read once for both.
struct Quantize {
  ConstSpan x_TN;   // fp32, bf16 or fp16
  ConstSpan scale;  // fp32, one element
  // f8e4m3 or f8e5m2. Finite numbers beyond the type's range become its largest number; infinities
  // and NaN become NaN.
  Span y_TN;
  // The transpose: rows of `stride` elements, with zeros after the T-th. `stride` is a multiple of
  // 16, and the address is a multiple of 16 bytes.
  Span y_NT;
  Span amax;  // optional, fp32, one element: becomes max(amax, largest finite |x|)
  int64_t T, N, stride = 0;
};

// Writes the transpose of an 8-bit tensor. It equals the transpose that Quantize writes from the
// float tensor.
struct TransposeFloat8 {
  ConstSpan x_TN;  // f8e4m3 or f8e5m2
  Span y_NT;       // same type; layout and alignment as in Quantize
  int64_t T, N, stride;
};

// Delayed scaling of C tensors (Micikevicius et al. 2022): the tensors' maxima of this step go into
// their histories, from which the scales of the next step are computed. A scale stays unchanged if
// the amax that decides it is 0. Only a history without any maximum takes one from a step that
// updates nothing, whose `grad_scale` is not finite, and only if it is finite.
struct UpdateScales {
  ConstSpan grad_scale;  // fp32, one element; optional
  Span amax_C;           // fp32; is read, then reset to 0
  Span history_CL;       // fp32, a ring buffer of the amaxes of L steps
  int64_t C, L, place;   // `place` in [0, L) is this step's place in the ring
  bool most_recent;      // the amax of this step decides; otherwise the largest of the history
  DType type;
  int margin;
  Span scale_C, inverse_C;
};

namespace cpu {
void run(const Amax&);
void run(const ScaleFromAmax&);
void run(const Quantize&);
void run(const TransposeFloat8&);
void run(const UpdateScales&);
}  // namespace cpu
namespace cuda {
void run(const Amax&, CUstream_st*);
void run(const ScaleFromAmax&, CUstream_st*);
void run(const Quantize&, CUstream_st*);
void run(const TransposeFloat8&, CUstream_st*);
void run(const UpdateScales&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
