// Fused softmax cross entropy: loss, and the gradient in place of the logits. The vocabulary is
// read in chunks with a running maximum and sum, so that a row needs no second buffer.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct CrossEntropy {
  Span logits_TV;  // fp32 or bf16; in: logits; out: grad_scale * (softmax - onehot) where
                   // write_grad (0 in ignored rows and padding)
  ConstSpan label_T;     // int32; negative: the token is masked, its loss and gradient are 0
  Span loss_T;           // fp32, loss of each token in nats
  int64_t T, V;          // V: true vocabulary
  int64_t row_stride;    // >= V; columns V.. are padding and take no part
  float grad_scale = 1;  // usually 1 / (unmasked tokens of the global batch)
  bool write_grad = true;
};

namespace cpu {
void run(const CrossEntropy&);
}
namespace cuda {
void run(const CrossEntropy&, CUstream_st*);
}

}  // namespace mtrain::kernels
