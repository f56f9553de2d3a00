// Options of the optimizer and its learning rate, and of 8-bit linears.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace mtrain::plan {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decoupled_decay = true;  // false: weight_decay times the weight is added to the gradient
  double clip_grad = 1.0;       // the largest global gradient norm; 0: gradients are not clipped
  bool master_weights = true;
  bool rounds_at_random = false;  // updates of bf16 weights without master weights round at random
  DType moments = DType::f32;     // or bf16, rounded at random
};

// Linear warm-up over `warmup_steps`, `lr` until `decay_begin`, down to `min_lr` at `decay_end`,
// and `min_lr` from there on.
struct LrScheduleOptions {
  // The shape of the decay from lr to min_lr; `constant` does not decay.
  enum class Decay { constant, linear, cosine, exponential, minus_sqrt };
  Decay decay = Decay::cosine;
  double lr = 3e-4, min_lr = 0;
  int64_t warmup_steps = 0, decay_begin = 0, decay_end = 0;
};

// The factor of the loss, and with it of all gradients until they are unscaled for the update: so
// that small gradients are numbers of fp16. A dynamic scale grows after `window` steps without an
// overflow, and falls after `hysteresis` overflows.
struct LossScaleOptions {
  bool on = false, dynamic = true;
  double initial = 65536;  // where not dynamic, the scale
  double min = 1;
  int64_t window = 2000;   // steps
  int64_t hysteresis = 1;  // overflows
};

// Linears that multiply in 8 bits: those of the layers [begin, end) of the model.
struct Fp8Options {
  bool on = false;
  int64_t begin = 0, end = 0;
  DType gradient = DType::f8e5m2;
  // What has a scale of its own: a tensor; 128 numbers along a GEMM's sum (in weights 128 x 128);
  // 32 numbers along it.
  enum class Scales { tensors, blocks_of_128, blocks_of_32 };
  Scales scales = Scales::tensors;
  bool delayed = false;  // scales of tensors come from the maxima of earlier steps
  int64_t margin = 0, history = 1;
  bool most_recent = true;  // the newest maximum decides the scale; else the largest of the history

  bool has(int64_t layer) const { return on && layer >= begin && layer < end; }
};

}  // namespace mtrain::plan
