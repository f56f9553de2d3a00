// AdamW (Loshchilov & Hutter 2019), fused over a flat buffer: it reads the gradient once, and
// writes the master, the moments and the parameter once. Without decoupled decay it is Adam with L2
// regularization (Kingma & Ba 2015): weight_decay * w is added to the scaled gradient.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// How bf16 parameters without master weights, and bf16 moments, are rounded. Stochastic rounding
// rounds up with a probability equal to the fraction that truncation would drop. It is unbiased:
// updates smaller than half a bf16 step are not lost. Element n of the full tensor takes half-word
// n % 8 (the low half of a word first) of Philox block n / 8 of `key` (base/rng.h). This holds for
// every backend and layout. Moments in bf16 always use stochastic rounding: those of element n take
// word n % 4 of block n / 4 of `moments_key`, m its low half and v its high half.
struct AdamWRounding {
  bool random = false;                // parameters: stochastic rounding; otherwise to nearest even
  uint64_t key = 0, moments_key = 0;  // differ between tensors and between steps
  // Element i of the buffer is element first + at + i of the full tensor. If columns > 0, it is
  // element first + (at + i) / columns * stride + (at + i) % columns.
  int64_t first = 0, at = 0, columns = 0, stride = 0;
};

// What follows from the learning rate, the decay and the number of an update.
struct AdamWFactors {
  float step_size;     // lr / (1 - beta1^step)
  float v_correction;  // 1 / (1 - beta2^step)
  float keep;          // the weight's own factor: 1 - lr * weight_decay under decoupled decay
};

struct AdamW {
  Span master;     // fp32; without a master, param itself is updated
  Span m, v;       // fp32, or both bf16
  ConstSpan grad;  // fp32
  Span param;      // the bf16 or fp16 copy of master for compute; optional if there is a master
  // Optional, one fp32: the gradients are multiplied by it (clipping). If it is not finite, nothing
  // is written: a failed step leaves the weights unchanged.
  ConstSpan grad_scale;
  float lr, beta1, beta2, eps, weight_decay;
  bool decoupled_decay = true;
  int64_t step;            // number of this update, from 1 (for the bias correction)
  AdamWRounding rounding;  // for param if there is no master, and for bf16 moments
  // Both optional, and read when the launch runs: the AdamWFactors (three fp32), which replace
  // those that follow from lr, weight_decay and step; and rounding's key and moments_key (two
  // int64).
  ConstSpan factors_in_memory = {}, keys_in_memory = {};

  int64_t count() const { return master ? master.count : param.count; }
};

// Computes them on the host.
AdamWFactors factors_of(const AdamW&);

namespace cpu {
void run(const AdamW&);
}
namespace cuda {
void run(const AdamW&, CUstream_st*);
}

}  // namespace mtrain::kernels
