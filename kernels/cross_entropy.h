// Fused softmax cross entropy: loss, and the gradient in place of the logits. The vocabulary is
// read in chunks with a running maximum and sum, so that a row needs no second buffer.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct CrossEntropy {
  Span logits_TV;        // fp32 or bf16; in: logits; out: grad_scale * (softmax - onehot) where
                         // write_grad (0 in ignored rows and padding)
  ConstSpan label_T;     // int32; negative: the token is masked, its loss and gradient are 0
  Span loss_T;           // fp32, loss of each token in nats
  int64_t T, V;          // V: true vocabulary
  int64_t row_stride;    // >= V; columns V.. are padding and take no part
  float grad_scale = 1;  // usually 1 / (unmasked tokens of the global batch)
  bool write_grad = true;
  ConstSpan scale_in_memory = {};  // optional, one fp32: read when it runs, instead of grad_scale
};

// The same over a vocabulary that is spread over ranks, without gathering logits: each rank sums
// its own columns, the ranks exchange three numbers a token, and each has its share of the
// gradient.
constexpr int64_t kCrossEntropySums = 3;  // maximum, sum of e^(x - maximum), the label's logit or 0

struct CrossEntropySums {
  ConstSpan logits_TV;  // fp32 or bf16: the columns [first, first + V) of the vocabulary
  ConstSpan label_T;    // int32, of the whole vocabulary; negative: masked
  Span sums_T3;         // fp32
  int64_t T, V;         // V: true columns here; 0 where the rank has padding only
  int64_t row_stride;   // >= V
  int64_t first, vocabulary;
};
struct CrossEntropyFromSums {  // CrossEntropy, given the sums of all ranks
  Span logits_TV;
  ConstSpan label_T;
  ConstSpan sums_PT3;                              // fp32, of P ranks
  Span loss_T;                                     // the same on every rank
  int64_t P, T, V, row_stride, first, vocabulary;  // as above
  float grad_scale = 1;
  bool write_grad = true;
};

namespace cpu {
void run(const CrossEntropy&);
void run(const CrossEntropySums&);
void run(const CrossEntropyFromSums&);
}  // namespace cpu
namespace cuda {
void run(const CrossEntropy&, CUstream_st*);
void run(const CrossEntropySums&, CUstream_st*);
void run(const CrossEntropyFromSums&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
