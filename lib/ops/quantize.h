// Scales, and quantized forms of matrices. kernels/fp8.h and fp8_blocks.h have the rules. Formats
// whose blocks have scales take these from the blocks: the functions below then ignore `scale` and
// `amax`.
#pragma once
#include "ops/operand.h"

namespace mtrain::ops {

// Returns the scale that maps the largest |x| to the largest number of `type` divided by 2^margin.
Scale current_scale(Stream& stream, const Tensor& x, DType type, int margin);
void current_scale_into(Stream& stream, const Tensor& x, DType type, int margin,
                        const Scale& scale);
// Returns the same scale from the largest |x| in `amax` (fp32, one element), and sets `amax` to 0.
Scale scale_from_amax(Stream& stream, const Tensor& amax, DType type, int margin);
void scale_from_amax_into(Stream& stream, const Tensor& amax, DType type, int margin,
                          const Scale& scale);
// Writes the largest finite |x| to `amax` (fp32, one element).
void amax_into(Stream& stream, const Tensor& x, const Tensor& amax);

// Returns memory for an (R, K) matrix, and for the inverses of its blocks.
Operand quantized_memory(Stream& stream, int64_t R, int64_t K, QuantFormat format,
                         device::MemoryCategory category = device::MemoryCategory::activations);
// The same for the transpose: (K, R'), where zeros round R up to R', a multiple of
// format.row_multiple().
Operand transposed_memory(Stream& stream, int64_t R, int64_t K, QuantFormat format,
                          device::MemoryCategory category = device::MemoryCategory::activations);

// Returns x quantized. `amax` (fp32, one element, optional) becomes the largest |x| if that is
// larger than its value.
Operand quantize(Stream& stream, const Tensor& x_TN, QuantFormat format, const Scale& scale,
                 const Tensor& amax = {});
// Returns the transpose.
Operand quantize_transposed(Stream& stream, const Tensor& x_TN, QuantFormat format,
                            const Scale& scale, const Tensor& amax = {});
// Returns both forms and reads x once.
struct QuantizedPair {
  Operand rows, transposed;
};
QuantizedPair quantize_both(Stream& stream, const Tensor& x_TN, QuantFormat format,
                            const Scale& scale, const Tensor& amax = {});
// Writes one or both forms, and reads x once. Either may be absent.
void quantize_into(Stream& stream, const Tensor& x_TN, const Scale& scale, const Operand& rows,
                   const Operand& transposed, const Tensor& amax = {});
// Returns the transpose of a quantized matrix, bit-equal to quantize_transposed(). The matrix is
// under one scale, or under square blocks, whose transposes are the blocks of the transpose.
Operand transpose_quantized(Stream& stream, const Operand& x_TN);
void transpose_quantized_into(Stream& stream, const Operand& x_TN, const Operand& y_NT);

// Quantize neighbouring elements of a matrix (R, K) under square blocks of scales, from element
// `begin` on in row-major order. kernels/fp8_blocks.h has the order of the three calls.
struct PartOfMatrix {
  int64_t begin, R, K;
};
void amax_of_part(Stream& stream, const PartOfMatrix& part, const Tensor& x, const Tensor& amax);
void inverses_of_amax(Stream& stream, const Tensor& amax, DType type);
void quantize_part(Stream& stream, const PartOfMatrix& part, const Tensor& x, const Tensor& inverse,
                   const Tensor& y);

// Computes the scales of the next step for C tensors, from the maxima of this step and of those
// before it; `place` in [0, L) is this step's place in the history. With a `grad_scale` (fp32, one
// element) that is not finite, histories stay as they are (kernels::UpdateScales).
struct DelayedScales {
  Tensor amax_C, history_CL, scale_C, inverse_C;
};
void update_scales(Stream& stream, const DelayedScales& scales, int64_t place, bool most_recent,
                   DType type, int margin, const Tensor& grad_scale = {});

}  // namespace mtrain::ops
