// Attention as an operation graph for cuDNN's flash engines, and the rules for when to request it
// from cuDNN. This header includes no CUDA header.
#pragma once
#include <compare>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/cudnn/operation_graph.h"

namespace mtrain::kernels::cuda {

// The ids of the caller's tensors in the graphs.
enum AttentionTensor : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLse,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  // For packed documents: (B) int32, the rows of each document, as queries and as keys.
  kQueryLengths,
  kKeyLengths
};
// For packed documents: (B + 1) int32, the element at which each document begins in that tensor.
constexpr int64_t offsets_of(int64_t tensor) { return 20 + tensor; }

// The key of a plan: everything that decides the graph.
struct CudnnAttentionKey {
  bool backward, causal;
  bool deterministic;  // the backward's sums over keys in a fixed order
  // Packed in one sequence of `rows` rows. B is then the number of documents that fit, and Sq the
  // rows of the longest one.
  bool documents;
  int64_t B, Sq, Skv, A, G, D, window;
  int64_t rows;       // of all documents; Sq without documents
  int64_t lse_heads;  // heads in the caller's lse; more than A in a call for some of the heads
  float scale;
  Element type;  // type of all tensors but the lse: bf16 or f16
  // Elements from one token to the next; 0 for the gradients in a forward.
  int64_t q, k, v, out, dout, dq, dk, dv;
  auto operator<=>(const CudnnAttentionKey&) const = default;
};
CudnnAttentionKey key_of(const AttentionForward& f);
// For packed documents: the key with gradients that are contiguous, row after row.
CudnnAttentionKey key_of(const AttentionBackward& b);

// The library and the GPU that run the plans.
struct CudnnTarget {
  size_t version = 0;    // cuDNN's: 91900 is 9.19.0
  int architecture = 0;  // the GPU's: 90 is sm_90
};
// Return why cuDNN is not used, or "" if it can be used. It may still refuse.
std::string why_not_cudnn(const AttentionForward& f, const CudnnTarget& target);
std::string why_not_cudnn(const AttentionBackward& b, const CudnnTarget& target);

// The graph of softmax(scale q k^T + mask) v, and of the logarithm of the softmax's sums: (B, A,
// Sq), or (Sq, A) for packed documents.
OperationGraph forward_graph(const CudnnAttentionKey& key);
// The graph of the gradients of q, k and v. With key.deterministic, dq is one GEMM over all keys,
// and cuDNN needs memory of the scores' size for it. Otherwise blocks of keys add to dq in memory
// as they finish. The graph decides this: cuDNN's engines have no numerical note about it.
OperationGraph backward_graph(const CudnnAttentionKey& key);

}  // namespace mtrain::kernels::cuda
