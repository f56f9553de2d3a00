// GEMMs of experts: the rows of expert e are multiplied by the e-th of E matrices (Gale et al.
// 2023, "MegaBlocks"). The experts' rows are contiguous: expert e has the rows [first[e], first[e +
// 1]), and may have none. Sums are fp32.
//
// Operands are fp32, bf16 or fp16, both of one type; or both are 8-bit floats of either kind, each
// with one factor for all its elements. The row length of 8-bit operands is a multiple of
// kFloat8Multiple, and their addresses are multiples of 16 bytes; an expert may still have any
// number of rows. On a GPU mtrain's own kernel converts them to fp16, which represents every 8-bit
// number exactly, before tensor cores read them.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"
#include "kernels/matmul.h"

struct CUstream_st;

namespace mtrain::kernels {

// c[r] = a[r] op(b[e]) for the rows r of each expert e. A row's bits depend neither on the number
// of its expert's rows nor on its position among them. Rows at first[E] and later are not written.
struct GroupedMatmul {
  ConstSpan a_RK;
  ConstSpan b_EKN;     // (E, K, N), or (E, N, K) if trans_b
  ConstSpan first_E1;  // int32, rising from 0 to at most R
  Span c_RN;           // fp32, or the operands' type; with 8-bit operands fp32, bf16 or fp16
  int64_t R, N, K, E;
  bool trans_b = false;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // as in Matmul
  ConstSpan a_inverse = {}, b_inverse = {};       // fp32, one element each, for 8-bit operands
  bool own_kernel = false;                        // a GPU uses mtrain's own kernel, never CUTLASS's
  int64_t sm_margin = 0;  // multiprocessors that CUTLASS's kernel leaves to other work
};

// c[e] = a^T b over the rows of each expert e, or c[e] += if `accumulate`. If a is the gradient of
// an output and b the input, this is the gradient of a weight (E, out, in). Without rows it is 0.
struct GroupedWeightGrad {
  ConstSpan a_RM, b_RN;
  ConstSpan first_E1;
  Span c_EMN;  // fp32
  int64_t R, M, N, E;
  bool accumulate = false;
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;
  ConstSpan a_inverse = {}, b_inverse = {};
  bool own_kernel = false;
  int64_t sm_margin = 0;
};

// Return whether the operands have 8 bits, and whether such operands obey the rules above except
// the one about addresses.
inline bool is_float8(const GroupedMatmul& m) {
  return is_float8(m.a_RK.dtype) || is_float8(m.b_EKN.dtype);
}
inline bool is_float8(const GroupedWeightGrad& m) {
  return is_float8(m.a_RM.dtype) || is_float8(m.b_RN.dtype);
}
inline bool float8_fits(const GroupedMatmul& m) {
  return is_float8(m.a_RK.dtype) && is_float8(m.b_EKN.dtype) && m.K % kFloat8Multiple == 0 &&
         m.N % kFloat8Multiple == 0 && m.a_inverse && m.b_inverse;
}
inline bool float8_fits(const GroupedWeightGrad& m) {
  return is_float8(m.a_RM.dtype) && is_float8(m.b_RN.dtype) && m.M % kFloat8Multiple == 0 &&
         m.N % kFloat8Multiple == 0 && m.a_inverse && m.b_inverse;
}

namespace cpu {
void run(const GroupedMatmul&);
void run(const GroupedWeightGrad&);
}  // namespace cpu
namespace cuda {
void run(const GroupedMatmul&, CUstream_st*);
void run(const GroupedWeightGrad&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
