// C = op(A) op(B) (+ bias) or C += op(A) op(B), fp32 accumulation, row-major.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct Matmul {      // a, b, bias_N and c_MN are fp32 or bf16, each for itself
  ConstSpan a;       // (M, K), or (K, M) where trans_a
  ConstSpan b;       // (K, N), or (N, K) where trans_b
  ConstSpan bias_N;  // optional, added to every row; not together with accumulate
  Span c_MN;         // accumulate needs fp32
  int64_t M, N, K;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  // C += instead of C =
};

namespace cpu {
void run(const Matmul&);
}
namespace cuda {
void run(const Matmul&, CUstream_st*);
}

}  // namespace mtrain::kernels
