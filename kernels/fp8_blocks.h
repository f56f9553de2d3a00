// 8-bit matrices with a scale for each block of elements. A scale is the largest power of two for
// which the block's scaled maximum is within the type's range. Multiplying by a power of two does
// not round. The memory holds the inverse of each scale. (R, K) is a matrix whose rows run along
// the summed dimension of a GEMM.
#pragma once
#include <cstdint>

#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// The shape of the blocks of a matrix whose elements share a scale.
enum class Float8Blocks : uint8_t {
  none,        // all of the matrix (kernels/fp8.h)
  rows_128,    // 128 neighbours of a row
  square_128,  // 128 x 128 elements
  rows_32,     // 32 neighbours of a row (Rouhani et al. 2023, "Microscaling data formats")
};

// Returns how many elements of a row share a scale.
constexpr int64_t block_length(Float8Blocks b) {
  return b == Float8Blocks::none ? 1 : b == Float8Blocks::rows_32 ? 32 : 128;
}
// Inverses are fp32 numbers, or bytes e that represent 2^(e - 127).
constexpr DType block_scale_type(Float8Blocks b) {
  return b == Float8Blocks::rows_32 ? DType::u8 : DType::f32;
}

// Returns how many blocks of `length` cover n elements.
constexpr int64_t blocks_over(int64_t n, int64_t length) { return (n + length - 1) / length; }

// The inverses have cuBLASLt's layout, on a CPU too. Those of blocks beyond the matrix are 1.
//   rows_128    [block of K][row], with rows rounded up to 4
//   square_128  [block of R][block of K], with blocks of K rounded up to 4
//   rows_32     tiles of 128 rows and 4 blocks of K, one row of tiles after the other; a tile is
//               [row % 32][row / 32][block]
constexpr int64_t block_scales(Float8Blocks b, int64_t R, int64_t K) {
  const int64_t blocks = blocks_over(K, block_length(b));
  switch (b) {
    case Float8Blocks::none: return 1;
    case Float8Blocks::rows_128: return blocks * blocks_over(R, 4) * 4;
    case Float8Blocks::square_128: return blocks_over(R, 128) * blocks_over(blocks, 4) * 4;
    case Float8Blocks::rows_32: return blocks_over(R, 128) * blocks_over(blocks, 4) * 512;
  }
  return 0;
}
// Returns the index of the inverse for row `row` and the `block`-th block along it.
constexpr int64_t block_scale_index(Float8Blocks b, int64_t R, int64_t K, int64_t row,
                                    int64_t block) {
  const int64_t blocks = blocks_over(K, block_length(b));
  switch (b) {
    case Float8Blocks::none: return 0;
    case Float8Blocks::rows_128: return block * blocks_over(R, 4) * 4 + row;
    case Float8Blocks::square_128: return row / 128 * (blocks_over(blocks, 4) * 4) + block;
    case Float8Blocks::rows_32: {
      const int64_t tile = row / 128 * blocks_over(blocks, 4) + block / 4;
      return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
    }
  }
  return 0;
}

// Writes x in 8 bits, and its transpose, each with the scales of its own blocks. Either result is
// optional. Elements of x that are not finite do not affect a scale, and become NaN.
struct QuantizeBlocks {
  ConstSpan x_TN;  // fp32, bf16 or fp16
  Float8Blocks blocks;
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
