// C = op(A) op(B) + bias, or C += op(A) op(B), of row-major matrices with fp32 sums.
#pragma once
#include "base/bf16_arithmetic.h"
#include "base/quant_format.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// a, b, bias_N and c_MN are each fp32, bf16 or fp16; or a and b are 8-bit floats. These must have
// the form that tensor cores require: not both f8e5m2, trans_b but not trans_a (rows of both run
// along K), K and N multiples of kFloat8Multiple, and addresses that are multiples of 16 bytes.
// Both have one scale, or both have scales of blocks. The blocks of both have the same length,
// which divides K, and are not both squares. On a GPU scales of 128 elements also need M to be a
// multiple of 4.
struct Matmul {
  ConstSpan a;       // (M, K), or (K, M) if trans_a
  ConstSpan b;       // (K, N), or (N, K) if trans_b
  ConstSpan bias_N;  // optional, added to every row; not together with accumulate
  Span c_MN;         // accumulate needs fp32
  int64_t M, N, K;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;                        // adds to C
  Bf16Arithmetic bf16 = Bf16Arithmetic::widened;  // how a CPU multiplies two bf16 operands
  // For 8-bit operands: the factors of their elements. Each is one fp32 number, or the inverses of
  // the blocks of the matrices (M, K) and (N, K).
  ConstSpan a_inverse = {}, b_inverse = {};
  ScaleBlocks a_blocks = ScaleBlocks::none, b_blocks = ScaleBlocks::none;
  bool fast = false;      // for 8-bit operands: less precise sums, in the tensor cores' own format
  int64_t sm_margin = 0;  // multiprocessors of a GPU reserved for other work
  // Epilogues: at most one of them, and none for 8-bit operands. P is op(A) op(B) + bias.
  Span gelu_input_MN = {};     // C = gelu(P) in the tanh form; P itself is written here
  ConstSpan dgelu_of_MN = {};  // C = P * gelu'(x) in the tanh form, where x is read from here
  Span a_sums_M = {};          // fp32: the sums of op(A) over K are added here; needs trans_a
};

// Return whether an operand has 8 bits, and whether such operands obey the rules above except the
// one about addresses.
inline bool is_float8(const Matmul& m) { return is_float8(m.a.dtype) || is_float8(m.b.dtype); }
inline bool float8_blocks_fit(const Matmul& m) {
  const auto inverses = [](ScaleBlocks b, const ConstSpan& s, int64_t rows, int64_t K) {
    return s.dtype == block_scale_type(b) && s.count >= block_scales(b, rows, K);
  };
  const bool squares = m.a_blocks == ScaleBlocks::square_128 && m.b_blocks == m.a_blocks;
  return block_length(m.a_blocks) == block_length(m.b_blocks) &&
         m.K % block_length(m.a_blocks) == 0 && !squares &&
         inverses(m.a_blocks, m.a_inverse, m.M, m.K) && inverses(m.b_blocks, m.b_inverse, m.N, m.K);
}
inline bool float8_fits(const Matmul& m) {
  const bool types = is_float8(m.a.dtype) && is_float8(m.b.dtype) &&
                     (m.a.dtype != DType::f8e5m2 || m.b.dtype != DType::f8e5m2);
  return types && !m.trans_a && m.trans_b && m.K % kFloat8Multiple == 0 &&
         m.N % kFloat8Multiple == 0 && m.a_inverse && m.b_inverse && float8_blocks_fit(m);
}

inline bool has_epilogue(const Matmul& m) { return m.gelu_input_MN || m.dgelu_of_MN || m.a_sums_M; }

namespace cpu {
void run(const Matmul&);
}
namespace cuda {
void run(const Matmul&, CUstream_st*);
}

}  // namespace mtrain::kernels
