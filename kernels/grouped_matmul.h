// Products of experts: the rows of expert e are multiplied by the e-th of E matrices (Gale et al.
// 2023, "MegaBlocks"). The experts' rows follow one another: expert e has the rows [first[e],
// first[e + 1]), and may have none. Operands are fp32, bf16 or fp16, both of one type; sums are
// fp32.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// c[r] = a[r] op(b[e]) for the rows r of each expert e. A row's bits depend neither on the number
// of its expert's rows nor on its place among them. Rows from first[E] on are not written.
struct GroupedMatmul {
  ConstSpan a_RK;
  ConstSpan b_EKN;     // (E, K, N), or (E, N, K) where trans_b
  ConstSpan first_E1;  // int32, rising from 0 to at most R
  Span c_RN;           // fp32, or of the operands' type
  int64_t R, N, K, E;
  bool trans_b = false;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // as in Matmul
};

// c[e] = a^T b over the rows of each expert e, or c[e] += where accumulate: with a the gradient of
// an output and b the input, the gradient of a weight (E, out, in). Without rows it is 0.
struct GroupedWeightGrad {
  ConstSpan a_RM, b_RN;
  ConstSpan first_E1;
  Span c_EMN;  // fp32
  int64_t R, M, N, E;
  bool accumulate = false;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;
};

namespace cpu {
void run(const GroupedMatmul&);
void run(const GroupedWeightGrad&);
}  // namespace cpu
namespace cuda {
void run(const GroupedMatmul&, CUstream_st*);
void run(const GroupedWeightGrad&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
