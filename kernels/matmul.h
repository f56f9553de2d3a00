// C = op(A) op(B) (+ bias) or C += op(A) op(B), fp32 accumulation, row-major.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// a, b, bias_N and c_MN are fp32 or bf16, each for itself. Or a and b are 8-bit floats, not both
// f8e5m2, with trans_b alone (both lie along K), K and N multiples of kFloat8Multiple and addresses
// on 16-byte borders: what tensor cores take.
constexpr int64_t kFloat8Multiple = 16;
struct Matmul {
  ConstSpan a;       // (M, K), or (K, M) where trans_a
  ConstSpan b;       // (K, N), or (N, K) where trans_b
  ConstSpan bias_N;  // optional, added to every row; not together with accumulate
  Span c_MN;         // accumulate needs fp32
  int64_t M, N, K;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;                        // C += instead of C =
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies two bf16 operands
  // Of 8-bit operands, which stand for their elements times this; fp32, one element each.
  ConstSpan a_inverse = {}, b_inverse = {};
  bool fast = false;  // of 8-bit operands: the hardware's own, shorter sums
  // What is computed beside the product, at most one of them; not of 8-bit operands.
  Span gelu_input_MN = {};     // the product goes here, and C = gelu(product), the tanh form
  ConstSpan dgelu_of_MN = {};  // C = product * gelu'(this), the tanh form
  Span a_sums_M = {};          // fp32: += the sums over K of op(A), where A is transposed
};

// Whether the product is one of 8 bits, and within the rules for those but the addresses'.
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
