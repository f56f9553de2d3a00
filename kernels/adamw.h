// AdamW (Loshchilov & Hutter 2019) fused over a flat buffer: reads the gradient once, writes
// master, moments and parameter once.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// How bf16 parameters that have no master weights are rounded. At random: up with the probability
// of what would be cut off, so that updates below half a step are kept in the mean. The random
// number of element n of the layout-free tensor is half-word n % 8 (the low half of a word first)
// of Philox block n / 8 of `key` (base/rng.h), on every backend and under every layout.
struct AdamWRounding {
  bool random = false;  // else to nearest even
  uint64_t key = 0;     // of the tensor and the step
  // Element i of the buffer is number first + at + i of the layout-free tensor; with columns, it is
  // first + (at + i) / columns * stride + (at + i) % columns.
  int64_t first = 0, at = 0, columns = 0, stride = 0;
};

struct AdamW {
  Span master, m, v;     // fp32; without master, param is what is updated
  ConstSpan grad;        // fp32
  Span param;            // bf16 copy of master for compute, optional where there is a master
  ConstSpan grad_scale;  // optional, one fp32: gradients are multiplied by it (clipping);
                         // where it is not finite nothing is written: a broken step must not spoil
                         // the weights
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;            // 1 for the first update (bias correction)
  AdamWRounding rounding;  // of param where there is no master

  int64_t count() const { return master ? master.count : param.count; }
};

namespace cpu {
void run(const AdamW&);
}
namespace cuda {
void run(const AdamW&, CUstream_st*);
}

}  // namespace mtrain::kernels
