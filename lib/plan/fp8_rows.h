// How many rows 8-bit GEMMs can have.
#pragma once
#include <cstdint>

#include "recipe/recipe.h"

namespace mtrain::plan {

// Returns the number that must divide the rows of every 8-bit GEMM over tokens. cuBLASLt supports
// scales of 128 numbers only for a multiple of 4; a CPU that emulates them has no such limit. A run
// reads it as plan.fp8.rows_multiple.
inline int64_t fp8_rows_multiple(const recipe::Recipe& r) {
  const auto& p = r.mixed_precision;
  const bool blockwise =
      p.fp8 != recipe::Fp8Format::none && p.fp8_recipe == recipe::Fp8Recipe::blockwise;
  return blockwise && r.train.device == recipe::DeviceChoice::cuda ? 4 : 1;
}

}  // namespace mtrain::plan
