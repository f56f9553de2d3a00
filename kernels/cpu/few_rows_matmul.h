// C = A B^T + bias for few rows of A, as in one step of generation: a matrix-vector multiplication
// for each row, which reads B once and packs nothing.
#pragma once
#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

constexpr int64_t kMinPackedRows = 9;  // with at least this many rows, packing pays

struct FewRowsMatmul {
  ConstSpan a_MK;    // fp32
  ConstSpan b_NK;    // any float type
  ConstSpan bias_N;  // fp32, optional
  Span c_MN;         // any float type
  int64_t M, N, K;   // M < kMinPackedRows
  int64_t k_block;   // terms of a sum that are added up before they are added to the earlier ones
};

// Each element of C has the same bits as the result of gemm() in fp32.
void run(const FewRowsMatmul& args);

}  // namespace mtrain::kernels::cpu
