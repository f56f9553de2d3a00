// Attention as cuDNN's flash engines want it described, and which attention they are asked for.
// Knows nothing of CUDA.
#pragma once
#include <compare>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/cudnn/operation_graph.h"

namespace mtrain::kernels::cuda {

// Of the caller's tensors in the graphs.
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
  // Of packed documents: (B) int32, the rows of each document, as queries and as keys.
  kQueryLengths,
  kKeyLengths
};
// Of packed documents: (B + 1) int32, the element at which each document begins in that tensor.
constexpr int64_t offsets_of(int64_t tensor) { return 20 + tensor; }

// All that decides the graph, and so the plan.
struct CudnnAttentionKey {
  bool backward, causal;
  bool deterministic;  // the backward's sums over keys in a fixed order
  bool documents;      // packed in one sequence of Sq rows: B is for how many there is room
  int64_t B, Sq, Skv, A, G, D, window;
  float scale;
  // From a token to the next, in elements; of the gradients 0 in a forward.
  int64_t q, k, v, out, dout, dq, dk, dv;
  auto operator<=>(const CudnnAttentionKey&) const = default;
};
CudnnAttentionKey key_of(const AttentionForward& f);
// Of packed documents: with gradients that lie close, row behind row.
CudnnAttentionKey key_of(const AttentionBackward& b);

// What runs the plans.
struct CudnnTarget {
  size_t version = 0;    // of cuDNN: 91900 is 9.19.0
  int architecture = 0;  // of the GPU: 90 is sm_90
};
// Why cuDNN is not asked; "" where it is. It may still refuse.
std::string why_not_cudnn(const AttentionForward& f, const CudnnTarget& target);
std::string why_not_cudnn(const AttentionBackward& b, const CudnnTarget& target);

// softmax(scale q k^T + mask) v, and the logarithm of the softmax's sums: (B, A, Sq), of packed
// documents (Sq, A).
OperationGraph forward_graph(const CudnnAttentionKey& key);
// The gradients of q, k and v. With key.deterministic the sums that make dq are one product over
// all keys, for which cuDNN wants memory of the scores' size, instead of additions in memory as
// blocks of keys are done. That choice is the graph's: cuDNN's engines note neither way.
OperationGraph backward_graph(const CudnnAttentionKey& key);

}  // namespace mtrain::kernels::cuda
