// Attention of single query rows, each to a range of rows of a key-value cache: the generation step
// that adds one token to each of several sequences. Scores, probabilities and sums are fp32, as in
// kernels/attention.h; nothing is kept for a backward.
#pragma once
#include "kernels/attention.h"

namespace mtrain::kernels {

// Query row t belongs to the sequence whose position 0 is the cache's row start_T[t]. It attends to
// the rows [start_T[t], end_T[t]), at least one row, or to the last `window` of them. q, k, v and
// out have one float type. On a CPU, out equals the result of AttentionForward (with
// Bf16Arithmetic::widened) bit for bit.
struct AttentionDecode {
  HeadView q;                // (T, A, D)
  HeadView k, v;             // (rows, G, D), (rows, G, Dv)
  HeadSpan out;              // (T, A, Dv)
  ConstSpan start_T, end_T;  // int32
  int64_t T, rows;           // queries, rows of the cache
  int64_t A, G, D;           // G divides A, and query head a reads kv head a / (A / G)
  int64_t window = 0;        // 0: no window
  float scale;               // usually 1 / sqrt(D)
  float cap = 0;             // as in AttentionShape
  int64_t Dv = 0;            // head dim of v and out; 0: D

  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
};
// The largest D of the CUDA kernel.
constexpr int64_t kDecodeMaxHeadDim = 576;

namespace cpu {
void run(const AttentionDecode&);
}
namespace cuda {
void run(const AttentionDecode&, CUstream_st*);
}

}  // namespace mtrain::kernels
