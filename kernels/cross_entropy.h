// Fused softmax cross entropy: it computes the loss and replaces the logits by their gradient. It
// reads the vocabulary in chunks with a running maximum and sum; therefore a row needs no second
// buffer. If logit_cap is above 0, the loss uses logit_cap tanh(x / logit_cap) for each logit x
// (Gemma 2), and the gradient is still with respect to x.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct CrossEntropy {
  // Any float. With write_grad they become grad_scale * (softmax - onehot), which is 0 in masked
  // rows and in padding.
  Span logits_TV;
  ConstSpan label_T;     // int32; a negative label masks its token: loss and gradient are 0
  Span loss_T;           // fp32, the loss of each token in nats
  int64_t T, V;          // V: true vocabulary
  int64_t row_stride;    // at least V; the columns after the first V are padding and are ignored
  float grad_scale = 1;  // usually 1 / (unmasked tokens of the global batch)
  bool write_grad = true;
  ConstSpan scale_in_memory = {};  // optional, one fp32: read at run time, replaces grad_scale
  float logit_cap = 0;
};

// The structs below compute the loss over a vocabulary that is sharded over ranks, without
// gathering the logits. Each rank sums over its own columns (CrossEntropySums), the ranks exchange
// three numbers for each token, and each rank computes its share of the gradient
// (CrossEntropyFromSums).
constexpr int64_t kCrossEntropySums = 3;  // maximum, sum of e^(x - maximum), the label's logit or 0

struct CrossEntropySums {
  ConstSpan logits_TV;  // any float: the columns [first, first + V) of the vocabulary
  ConstSpan label_T;    // int32, an index into the full vocabulary; negative: masked
  Span sums_T3;         // fp32
  int64_t T, V;         // V: true columns of this rank; 0 if it has only padding
  int64_t row_stride;   // at least V
  int64_t first, vocabulary;
  float logit_cap = 0;  // the sums are those of the capped logits
};
// Computes the same as CrossEntropy, from the sums of all ranks.
struct CrossEntropyFromSums {
  Span logits_TV;
  ConstSpan label_T;
  ConstSpan sums_PT3;                              // fp32, of P ranks
  Span loss_T;                                     // the same on every rank
  int64_t P, T, V, row_stride, first, vocabulary;  // as above
  float grad_scale = 1;
  bool write_grad = true;
  ConstSpan scale_in_memory = {};  // optional, as above
  float logit_cap = 0;
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
