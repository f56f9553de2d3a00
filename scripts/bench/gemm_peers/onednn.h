// oneDNN's matmul on the calling thread alone. Primitives are cached per shape and thread; we
// allocate their scratchpad memory.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace mtrain::bench::onednn {

// C (M, N; rows ldc apart) = op(A) op(B) (+ bias_N, fp32) (+ C if accumulate). a_b is the type of A
// and B, fp32 or bf16. C is fp32 or bf16 and always row-major, since oneDNN has no fast path for a
// column-major destination. lda and ldb are the row strides of A and B as stored.
struct MatmulArgs {
  const void* a;
  const void* b;
  const float* bias;
  void* c;
  int64_t M, N, K;
  int64_t lda, ldb, ldc;
  bool trans_a, trans_b, accumulate;
  DType a_b, c_type;
};
void run(const MatmulArgs&);

// Returns whether this CPU lets oneDNN multiply bf16 natively (AVX512_BF16 or AMX). Otherwise
// oneDNN uses a slow reference implementation.
bool has_bf16();

}  // namespace mtrain::bench::onednn
