// C = op(A) op(B) + bias, or C += op(A) op(B), of row-major matrices with fp32 sums.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// a, b, bias_N and c_MN are each fp32, bf16 or fp16; or a and b are 8-bit floats in the form
// that tensor cores take: not both f8e5m2, trans_b but not trans_a (so that rows of both lie along
// K), K and N multiples of kFloat8Multiple, and addresses that are multiples of 16 bytes.
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
  bool fast = false;  // for 8-bit operands: sums in the tensor cores' own format, shorter than fp32
  // Epilogues: at most one of them, and none for 8-bit operands. P is op(A) op(B) + bias.
  Span gelu_input_MN = {};     // C = gelu(P) in the tanh form; P itself is written here
  ConstSpan dgelu_of_MN = {};  // C = P * gelu'(x) in the tanh form, where x is read from here
  Span a_sums_M = {};          // fp32: the sums of op(A) over K are added here; needs trans_a
};

// Return whether an operand has 8 bits, and whether such operands obey the rules above except the
// one about addresses.
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
