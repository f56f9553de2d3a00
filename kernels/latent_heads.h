// The heads of latent attention (DeepSeek-AI 2024, "DeepSeek-V2"). A key consists of N elements of
// its head, and of R elements that all heads of a token share. A value has V elements. The core
// reads queries, keys and values as one row of each token:
//   q     A heads of N + R elements
//   keys  A heads of N + R elements
//   v     A heads of V elements
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// All operands have one float type.
struct LatentHeadsForward {
  ConstSpan q_TN;       // (T, A (N + R))
  ConstSpan kv_TN;      // (T, A (N + V)): a head's key, then its value
  ConstSpan shared_TR;  // the shared elements of the keys
  Span qkv_TN;          // (T, A (2 N + 2 R + V))
  int64_t T, A, N, R, V;
};
struct LatentHeadsBackward {
  ConstSpan dqkv_TN;
  Span dq_TN, dkv_TN;
  Span dshared_TR;  // the sum over heads, which is computed in fp32
  int64_t T, A, N, R, V;
};

namespace cpu {
void run(const LatentHeadsForward&);
void run(const LatentHeadsBackward&);
}  // namespace cpu
namespace cuda {
void run(const LatentHeadsForward&, CUstream_st*);
void run(const LatentHeadsBackward&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
