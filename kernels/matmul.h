// C = op(A) op(B) + bias, or C += op(A) op(B), of row-major matrices with fp32 sums.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// a, b, bias_N and c_MN may each be fp32 or bf16. Instead, a and b may be 8-bit floats in the form
// that tensor cores take: not both f8e5m2, with trans_b alone (both lie along K), K and N multiples
// of kFloat8Multiple, and addresses on 16-byte borders.
constexpr int64_t kFloat8Multiple = 16;
struct Matmul {
  ConstSpan a;       // (M, K), or (K, M) where trans_a
  ConstSpan b;       // (K, N), or (N, K) where trans_b
  ConstSpan bias_N;  // optional, added to every row; not together with accumulate
  Span c_MN;         // accumulate needs fp32
  int64_t M, N, K;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;                        // adds to C
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies two bf16 operands
  // For 8-bit operands: the factors of their elements; fp32, one element each.
  ConstSpan a_inverse = {}, b_inverse = {};
  bool fast = false;  // for 8-bit operands: sums as short as the hardware's own
  // Epilogues: at most one of them, and none for 8-bit operands. Here GEMM is op(A) op(B) + bias.
  Span gelu_input_MN = {};     // gets the GEMM, and C = gelu(GEMM) in the tanh form
  ConstSpan dgelu_of_MN = {};  // C = GEMM * gelu'(this), in the tanh form
  Span a_sums_M = {};          // fp32: adds the sums over K of op(A); A must be transposed
};

// Whether an operand has 8 bits; and whether such operands keep all rules above but the addresses'.
inline bool is_float8(const Matmul& m) { return is_float8(m.a.dtype) || is_float8(m.b.dtype); }
inline bool float8_fits(const Matmul& m) {
  const bool types = is_float8(m.a.dtype) && is_float8(m.b.dtype) &&
                     (m.a.dtype != DType::f8e5m2 || m.b.dtype != DType::f8e5m2);
  return types && !m.trans_a && m.trans_b && m.K % kFloat8Multiple == 0 &&
         m.N % kFloat8Multiple == 0 && m.a_inverse && m.b_inverse;
}

inline bool has_epilogue(const Matmul& m) { return m.gelu_input_MN || m.dgelu_of_MN || m.a_sums_M; }

namespace cpu {
void run(const Matmul&);
}
namespace cuda {
void run(const Matmul&, CUstream_st*);
}

}  // namespace mtrain::kernels
