// Computes the workspace of attention's backward on a GPU: memory that a launch allocates beside
// tensors and then frees. It leaves out small buffers: partial sums of blocks and columns, and the
// borders of packed documents. cuDNN's share is that of its engines for Hopper, which
// test/cuda/cudnn/library_test.cpp compares with plans.
#pragma once
#include <cstdint>

namespace mtrain::plan {

struct AttentionWork {
  int64_t rows, keys;  // queries and keys in all sequences
  int64_t sequence;    // keys of each sequence, or of the longest document
  int64_t A, G, D;     // query heads, kv heads, and the elements of a head
  bool cudnn;          // cuDNN computes attention; otherwise our own kernels do
  bool fixed_order;    // dq is summed in a fixed order
  bool documents;      // the sequence is packed, and has as many keys as queries
  // Context parallelism adds the gradients of blocks of keys up in fp32: those of the queries, and
  // those of the keys, too, if it has gathered the keys.
  bool blocks = false, gathered = false;
  // Bytes of an element of operands that are copied to heads of D elements, because values
  // differ from keys in size; 0: none are.
  int64_t padded = 0;
};

// Above this, a backward of fixed order computes some of the heads at a time.
constexpr int64_t kCudnnWorkspaceLimit = int64_t(1) << 30;

// Returns the bytes that a plan of cuDNN needs for `A` of the heads, with the tensors of its graph.
constexpr int64_t cudnn_plan_workspace(const AttentionWork& w, int64_t A) {
  const int64_t out_dout = 4 * w.rows * A;  // row sums of out * dout, in fp32
  const int64_t dq_sums = w.fixed_order ? 0 : 4 * w.rows * A * w.D;
  // Gradients of scores in 16 bits, for full tiles of 128 keys.
  const int64_t scores = w.fixed_order ? 2 * w.rows * A * ((w.sequence + 127) / 128 * 128) : 0;
  // dk and dv of each query head, if several share a kv head: in 16 bits, and for packed documents
  // the frontend makes room for fp32.
  const int64_t by_query_head = w.A == w.G ? 0 : 2 * (w.documents ? 4 : 2) * w.keys * A * w.D;
  return out_dout + dq_sums + scores + by_query_head;
}

// Returns the bytes of the lse and of gradients in the form that cuDNN reads and writes, if the
// caller's differs.
constexpr int64_t cudnn_form_workspace(const AttentionWork& w) {
  const int64_t lse = 4 * w.rows * w.A, q = w.rows * w.A * w.D, kv = w.keys * w.G * w.D;
  if (w.documents) return lse + 2 * (q + 2 * kv);  // gradients without gaps between rows
  if (!w.blocks) return 0;
  if (w.A != w.G || w.fixed_order) return lse + 2 * (q + 2 * kv);  // these gradients have 16 bits
  return lse + 4 * q + (w.gathered ? 2 * 4 * kv : 0);
}

// Returns the bytes of v, dv, out and dout in heads of D elements.
constexpr int64_t padding_workspace(const AttentionWork& w) {
  const int64_t of_dv = w.blocks && w.padded > 0 ? 4 : w.padded;
  return w.D * (w.keys * w.G * (w.padded + of_dv) + w.rows * w.A * 2 * w.padded);
}

// Returns bytes, without those of padding.
constexpr int64_t unpadded_workspace(const AttentionWork& w) {
  const int64_t own_kernels = 4 * w.rows * w.A;  // row sums of out * dout
  if (!w.cudnn) return own_kernels;
  // The scores of documents depend on how many and how long they are; the limit is the bound.
  if (w.documents && w.fixed_order) return kCudnnWorkspaceLimit + cudnn_form_workspace(w);
  for (int64_t calls = 1; calls <= w.G; ++calls) {
    if (w.G % calls != 0) continue;
    const int64_t plan = cudnn_plan_workspace(w, w.A / calls);
    if (!w.fixed_order || plan <= kCudnnWorkspaceLimit) return plan + cudnn_form_workspace(w);
  }
  return own_kernels;  // one kv head is too many
}

// Returns bytes.
constexpr int64_t attention_workspace(const AttentionWork& w) {
  return unpadded_workspace(w) + padding_workspace(w);
}

}  // namespace mtrain::plan
