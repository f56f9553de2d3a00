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
  ConstSpan q_TN;       // (T, A (N + R)); optional: without it the rows begin with the keys
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

// With queries that are multiplied by the weights of the keys, attention reads latents instead of
// keys and values (DeepSeek-AI 2024, section 2.1.2). The weight (A (N + V), C) expands a latent of
// C elements to kv_TN above. Sums are fp32, and all operands have one float type.
struct LatentQueries {
  ConstSpan q_TN, weight_NC;
  Span out_TN;  // (T, A (C + R)): a head's first N elements times its keys' weight, then the others
  int64_t T, A, N, R, V, C;
};
struct LatentValues {
  ConstSpan x_TN, weight_NC;  // x (T, A C): of each head a weighted sum of latents
  Span out_TN;                // (T, A V)
  int64_t T, A, N, V, C;
};

namespace cpu {
void run(const LatentHeadsForward&);
void run(const LatentHeadsBackward&);
void run(const LatentQueries&);
void run(const LatentValues&);
}  // namespace cpu
namespace cuda {
void run(const LatentHeadsForward&, CUstream_st*);
void run(const LatentHeadsBackward&, CUstream_st*);
void run(const LatentQueries&, CUstream_st*);
void run(const LatentValues&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
