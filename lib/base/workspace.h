// What a GPU's kernels take for the time of a launch, beside tensors: the kernels and the plan of
// memory agree on it. Not in here is what cuDNN takes for itself, which it tells for each plan and
// GPU, and what is small: partial sums of blocks and columns, the counts of a vocabulary, borders
// of packed documents.
#pragma once
#include <cstdint>

namespace mtrain {

// Of a product by cuBLASLt: every one takes the most that any may ask, as the vendor advises for
// Hopper.
inline constexpr int64_t kMatmulWorkspace = 32ll << 20;

// Attention's backward of so many rows of queries, in all sequences; A query heads, G kv heads of D
// elements.
struct AttentionWork {
  int64_t rows, A, G, D;
  bool cudnn;        // or our own kernels
  bool fixed_order;  // of the sums that make dq
  bool documents;    // packed: as many rows of keys
};
constexpr int64_t attention_workspace(const AttentionWork& w) {
  const int64_t out_dout = 4 * w.rows * w.A;  // fp32, as all sums
  if (!w.cudnn) return out_dout;
  const int64_t q = w.rows * w.A * w.D, kv = w.rows * w.G * w.D;
  const int64_t dq_sums = w.fixed_order ? 0 : 4 * q;
  if (!w.documents) return out_dout + dq_sums;
  // An lse of cuDNN's form, gradients that lie close, and those of keys and values for each query
  // head where several share a kv head.
  const int64_t lse = 4 * w.rows * w.A, close = 2 * (q + 2 * kv),
                by_query_head = w.A == w.G ? 0 : 2 * 2 * q;
  return out_dout + dq_sums + lse + close + by_query_head;
}

}  // namespace mtrain
