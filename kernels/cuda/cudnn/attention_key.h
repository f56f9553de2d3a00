// The key of a cuDNN plan for attention, and the rules that decide which attention cuDNN computes.
// This header includes no CUDA header.
#pragma once
#include <compare>
#include <string>

#include "kernels/attention.h"

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
  bool bottom_right;   // the last row attends to the last key; otherwise the first to the first
  bool deterministic;  // the backward's sums over keys in a fixed order
  bool documents;      // packed in one sequence of Sq rows; B is the number of documents that fit
  int64_t B, Sq, Skv, A, G;
  int64_t D, Dv;  // elements of a head of q and k, and of v and out
  int64_t window;
  int64_t longest;    // rows of the longest document that fits; 0 without documents
  int64_t lse_heads;  // heads in a row of the documents' lse; more than A in a call for some heads
  float scale, cap;
  DType type;                         // of q, k, v and dout, and of the backward's out: bf16 or f16
  DType out_type, dq_type, dkv_type;  // of the results
  // Elements from one token to the next; 0 for the gradients in a forward.
  int64_t q, k, v, out, dout, dq, dk, dv;
  auto operator<=>(const CudnnAttentionKey&) const = default;
};
CudnnAttentionKey key_of(const AttentionForward& f);

// The library and the GPU that run the plans.
struct CudnnTarget {
  size_t version = 0;    // cuDNN's: 91900 is 9.19.0
  int architecture = 0;  // the GPU's: 90 is sm_90
};
// The plan's gradients may differ from the caller's: rows are contiguous if documents are packed
// or if the gradient is added to, and some gradients have 16 bits where the caller's are fp32.
CudnnAttentionKey key_of(const AttentionBackward& b, const CudnnTarget& target);

// Return why cuDNN is not used, or "" if it can be used. It may still refuse.
std::string why_not_cudnn(const AttentionForward& f, const CudnnTarget& target);
std::string why_not_cudnn(const AttentionBackward& b, const CudnnTarget& target);

}  // namespace mtrain::kernels::cuda
