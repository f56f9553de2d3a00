// What attention's backward on a GPU allocates for the time of a launch, beside tensors. Left out
// are what cuDNN takes for itself, which it tells for each plan and GPU, and what is small: partial
// sums of blocks and columns, the counts of a vocabulary, borders of packed documents.
#pragma once
#include <cstdint>

namespace mtrain::plan {

// `rows` queries in all sequences, with A query heads and G kv heads of D elements.
struct AttentionWork {
  int64_t rows, A, G, D;
  bool cudnn;        // else our own kernels compute it
  bool fixed_order;  // dq is summed in a fixed order
  bool documents;    // the sequence is packed, with as many rows of keys as of queries
};

// In bytes.
constexpr int64_t attention_workspace(const AttentionWork& w) {
  const int64_t out_dout = 4 * w.rows * w.A;  // fp32, as all sums
  if (!w.cudnn) return out_dout;
  const int64_t q = w.rows * w.A * w.D, kv = w.rows * w.G * w.D;
  const int64_t dq_sums = w.fixed_order ? 0 : 4 * q;
  if (!w.documents) return out_dout + dq_sums;
  // cuDNN needs an lse in its own form and gradients without gaps between rows. Where several query
  // heads share a kv head, it also writes dk and dv for each query head.
  const int64_t lse = 4 * w.rows * w.A, packed = 2 * (q + 2 * kv),
                by_query_head = w.A == w.G ? 0 : 2 * 2 * q;
  return out_dout + dq_sums + lse + packed + by_query_head;
}

}  // namespace mtrain::plan
