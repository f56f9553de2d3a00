// 8-bit matrices with a scale for each block of elements. A scale is the largest power of two for
// which the block's scaled maximum is within the type's range. Multiplying by a power of two does
// not round. The memory holds the inverse of each scale; base/quant_format.h has its layout.
#pragma once
#include "base/quant_format.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// Writes x in 8 bits, and its transpose, each with the scales of its own blocks. Either result is
// optional. Elements of x that are not finite do not affect a scale, and become NaN.
struct QuantizeBlocks {
  ConstSpan x_TN;  // fp32, bf16 or fp16
  ScaleBlocks blocks;
  Span y_TN;        // f8e4m3 or f8e5m2
  Span inverse_TN;  // block_scales(blocks, T, N) inverses
  // The transpose: rows of `stride` elements, with zeros after the T-th. `stride` is a multiple of
  // block_length(blocks), and the address is a multiple of 16 bytes.
  Span y_NT;
  Span inverse_NT;  // block_scales(blocks, N, stride) inverses
  int64_t T, N, stride = 0;
};

// The three structs below quantize a matrix (R, K) under square blocks whose elements are spread
// over ranks. x has neighbouring elements of the matrix in row-major order, from element `begin`
// on. After all parts have had AmaxOfPart, and the maxima of the ranks are combined, the result has
// the bits of QuantizeBlocks.

// Every block's maximum becomes the largest finite |x| of its elements in the part, if that is
// larger.
struct AmaxOfPart {
  ConstSpan x;  // fp32, bf16 or fp16
  Span amax;    // fp32, block_scales(square_128, R, K) maxima in the layout of inverses
  int64_t begin, R, K;
};

// Replaces the maxima of blocks by the inverses of their scales for `type`, in place.
struct InversesOfAmax {
  Span inverse;  // fp32, any number of them
  DType type;    // f8e4m3 or f8e5m2
};

// Writes the elements of the part in 8 bits.
struct QuantizePart {
  ConstSpan x;        // fp32, bf16 or fp16
  ConstSpan inverse;  // fp32, block_scales(square_128, R, K) inverses
  Span y;             // f8e4m3 or f8e5m2, as many elements as x
  int64_t begin, R, K;
};

// Writes the inverses of the transpose of a matrix (T, N) under square blocks. The transpose has
// rows of `stride` elements.
struct TransposeInverses {
  ConstSpan inverse_TN;  // fp32, block_scales(square_128, T, N)
  Span inverse_NT;       // fp32, block_scales(square_128, N, stride)
  int64_t T, N, stride;  // blocks_over(stride, 128) = blocks_over(T, 128)
};

namespace cpu {
void run(const QuantizeBlocks&);
void run(const AmaxOfPart&);
void run(const InversesOfAmax&);
void run(const QuantizePart&);
void run(const TransposeInverses&);
}  // namespace cpu
namespace cuda {
void run(const QuantizeBlocks&, CUstream_st*);
void run(const AmaxOfPart&, CUstream_st*);
void run(const InversesOfAmax&, CUstream_st*);
void run(const QuantizePart&, CUstream_st*);
void run(const TransposeInverses&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
