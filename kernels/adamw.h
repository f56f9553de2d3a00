// AdamW (Loshchilov & Hutter 2019) fused over a flat buffer: reads the gradient once, writes
// master, moments and parameter once.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct AdamW {
  Span master, m, v;     // fp32
  ConstSpan grad;        // fp32
  Span param;            // optional bf16 copy of master for compute
  ConstSpan grad_scale;  // optional, one fp32: gradients are multiplied by it (clipping);
                         // where it is not finite nothing is written: a broken step must not spoil
                         // the weights
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;  // 1 for the first update (bias correction)
};

namespace cpu {
void run(const AdamW&);
}
namespace cuda {
void run(const AdamW&, CUstream_st*);
}

}  // namespace mtrain::kernels
