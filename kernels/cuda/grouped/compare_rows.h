// Compares the rows of two results of one GEMM. This header includes no CUDA header.
#pragma once
#include <cstdint>

#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels::cuda {

// x and y are equal if no element differs by more than
//   relative * |y| + of_row * (root mean square of y's row).
// The rounding errors of sums in different orders follow the size of the summed products, and a
// row's mean square measures that: all sums of a row share a row of the first operand. Two results
// that are not finite are equal.
struct CompareRows {
  ConstSpan x_RN, y_RN;  // fp32 or bf16, the same
  int64_t R, N;
  float relative, of_row;
};

struct RowsDifference {
  // The largest difference in units of what is allowed; infinite if one number alone is not finite.
  float worst;
  int32_t compared;  // 1 if any row of y has a number other than 0
};
// Writes the result to device memory.
void compare_rows(const CompareRows& rows, RowsDifference* result, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
