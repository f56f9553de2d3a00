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

namespace cpu {
void run(const QuantizeBlocks&);
}
namespace cuda {
void run(const QuantizeBlocks&, CUstream_st*);
}

}  // namespace mtrain::kernels
