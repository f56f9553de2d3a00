// How the elements of a matrix are stored: as plain numbers, or quantized, where an element
// represents x ~ element * inverse of its scale. A format is a value. Memory, GEMMs and the kernels
// that quantize ask it, and the code between them passes it on.
//
// To add a format, take NVFP4 as an example. It has 4 bits, a scale of f8e4m3 for 16 neighbours,
// and an outer scale.
//   1. Add its element to DType, and its width to bits(). Tensor counts bytes by dtype_size(): give
//      it bits, too.
//   2. Add its blocks to ScaleBlocks, a case to each function below, and a line to outer_scale().
//   3. Write the kernels that quantize and multiply it, and dispatch to them in ops/quantize.cpp
//      and ops/matmul.cpp (ops/experts.cpp for experts).
//   4. Name it in linear_formats() of plan/options/recipe_options.cpp, for a word of the recipe.
// lib/model passes operands on; an outer scale beside scales of blocks needs a second one in
// Operand.
//
// (R, K) is a matrix whose rows run along the summed dimension of a GEMM.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace mtrain {

// The shape of the blocks of a matrix whose elements share a scale.
enum class ScaleBlocks : uint8_t {
  none,        // all of the matrix: its one scale is fp32, and is found outside of the matrix
  rows_128,    // 128 neighbours of a row
  square_128,  // 128 x 128 elements
  rows_32,     // 32 neighbours of a row (Rouhani et al. 2023, "Microscaling data formats")
};

// Returns how many elements of a row share a scale.
constexpr int64_t block_length(ScaleBlocks b) {
  return b == ScaleBlocks::none ? 1 : b == ScaleBlocks::rows_32 ? 32 : 128;
}
// Inverses are fp32 numbers, or bytes e that represent 2^(e - 127).
constexpr DType block_scale_type(ScaleBlocks b) {
  return b == ScaleBlocks::rows_32 ? DType::u8 : DType::f32;
}

// Returns how many blocks of `length` cover n elements.
constexpr int64_t blocks_over(int64_t n, int64_t length) { return (n + length - 1) / length; }

// The inverses have cuBLASLt's layout, on a CPU too. Those of blocks beyond the matrix are 1.
//   rows_128    [block of K][row], with rows rounded up to 4
//   square_128  [block of R][block of K], with blocks of K rounded up to 4
//   rows_32     tiles of 128 rows and 4 blocks of K, one row of tiles after the other; a tile is
//               [row % 32][row / 32][block]
constexpr int64_t block_scales(ScaleBlocks b, int64_t R, int64_t K) {
  const int64_t blocks = blocks_over(K, block_length(b));
  switch (b) {
    case ScaleBlocks::none: return 1;
    case ScaleBlocks::rows_128: return blocks * blocks_over(R, 4) * 4;
    case ScaleBlocks::square_128: return blocks_over(R, 128) * blocks_over(blocks, 4) * 4;
    case ScaleBlocks::rows_32: return blocks_over(R, 128) * blocks_over(blocks, 4) * 512;
  }
  return 0;
}
// Returns the index of the inverse for row `row` and the `block`-th block along it.
constexpr int64_t block_scale_index(ScaleBlocks b, int64_t R, int64_t K, int64_t row,
                                    int64_t block) {
  const int64_t blocks = blocks_over(K, block_length(b));
  switch (b) {
    case ScaleBlocks::none: return 0;
    case ScaleBlocks::rows_128: return block * blocks_over(R, 4) * 4 + row;
    case ScaleBlocks::square_128: return row / 128 * (blocks_over(blocks, 4) * 4) + block;
    case ScaleBlocks::rows_32: {
      const int64_t tile = row / 128 * blocks_over(blocks, 4) + block / 4;
      return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
    }
  }
  return 0;
}

// The row length of an 8-bit operand is a multiple of this: GPUs read rows by 16 bytes.
constexpr int64_t kFloat8Multiple = 16;

struct QuantFormat {
  DType element = DType::f32;
  ScaleBlocks blocks = ScaleBlocks::none;

  // Whether elements need a scale.
  constexpr bool quantized() const { return is_float8(element); }
  // Whether one scale for all of the matrix is found before the matrix is quantized.
  constexpr bool outer_scale() const { return quantized() && blocks == ScaleBlocks::none; }
  constexpr DType scale_type() const { return block_scale_type(blocks); }
  // Returns how many scales (R, K) has.
  constexpr int64_t scales(int64_t R, int64_t K) const { return block_scales(blocks, R, K); }
  // The row length of a quantized GEMM operand is a multiple of this.
  constexpr int64_t row_multiple() const {
    return blocks == ScaleBlocks::none ? kFloat8Multiple : block_length(blocks);
  }
  int64_t bits() const { return 8 * dtype_size(element); }  // of an element
  // Returns the bytes of an element with its part of a block's scale, on average.
  double bytes_with_scales() const {
    const int64_t rows = blocks == ScaleBlocks::square_128 ? 128 : 1;
    const double scale = blocks == ScaleBlocks::none
                             ? 0
                             : double(dtype_size(scale_type())) / double(rows * row_multiple());
    return double(bits()) / 8 + scale;
  }
  bool operator==(const QuantFormat&) const = default;
};

// The formats of the operands of a linear's GEMMs. The transpose of an operand has its format, too.
struct LinearFormats {
  QuantFormat input = {DType::f8e4m3}, weight = input, gradient = {DType::f8e5m2};
  bool operator==(const LinearFormats&) const = default;
};

}  // namespace mtrain
