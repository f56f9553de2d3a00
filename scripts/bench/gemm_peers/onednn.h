// oneDNN's matmul on the calling thread alone. Primitives are cached per shape and thread; their
// scratch is ours.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace mtrain::bench::onednn {

// C (M, N; rows ldc apart) = op(A) op(B) (+ bias_N, fp32) (+ C where accumulate). a_b: both fp32 or
// both bf16; C fp32 or bf16, always row-major: oneDNN has no fast path for a column-major
// destination. lda, ldb: row strides as stored.
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

// Whether oneDNN multiplies bf16 natively here (AVX512_BF16 or AMX). Elsewhere it converts in a
// slow reference implementation.
bool has_bf16();

}  // namespace mtrain::bench::onednn
