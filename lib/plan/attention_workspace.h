// Computes the workspace of attention's backward on a GPU: memory that a launch allocates beside
// tensors and then frees. The figure leaves out cuDNN's own workspace, which depends on its plan
// and the GPU. It also leaves out small buffers: partial sums of blocks and columns, and the
// borders of packed documents.
#pragma once
#include <cstdint>

namespace mtrain::plan {

struct AttentionWork {
  int64_t rows;      // queries in all sequences
  int64_t A, G, D;   // query heads, kv heads, and the elements of a head
  bool cudnn;        // cuDNN computes attention; otherwise our own kernels do
  bool fixed_order;  // dq is summed in a fixed order
  bool documents;    // the sequence is packed, and has as many keys as queries
};

// Returns bytes.
constexpr int64_t attention_workspace(const AttentionWork& w) {
  const int64_t out_dout = 4 * w.rows * w.A;  // row sums of out * dout, in fp32
  if (!w.cudnn) return out_dout;
  const int64_t q = w.rows * w.A * w.D, kv = w.rows * w.G * w.D;
  const int64_t dq_sums = w.fixed_order ? 0 : 4 * q;
  if (!w.documents) return out_dout + dq_sums;
  // cuDNN needs an lse in its own form, and gradients without gaps between rows. If several query
  // heads share a kv head, it also writes dk and dv for each query head.
  const int64_t lse = 4 * w.rows * w.A, packed = 2 * (q + 2 * kv),
                by_query_head = w.A == w.G ? 0 : 2 * 2 * q;
  return out_dout + dq_sums + lse + packed + by_query_head;
}

}  // namespace mtrain::plan
