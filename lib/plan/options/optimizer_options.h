// Options of the optimizer and its learning rate, and of 8-bit linears.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/lr_decay.h"
#include "base/quant_format.h"

namespace mtrain::plan {

// Muon updates the matrices of layers; AdamW updates the other parameters.
struct MuonOptions {
  bool on = false;
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;
  // The numbers a, b, c of the iteration: three for all steps, or three for each step.
  std::vector<double> coefficients{3.4445, -4.775, 2.0315};
  double eps = 1e-7;
  // The factor on the update of an (out, in) matrix, in the order of the values:
  // sqrt(max(1, out / in)), 0.2 sqrt(max(out, in)), sqrt(max(out, in)), sqrt(out / in).
  enum class Scale { original, match_rms_adamw, spectral, unit_rms_norm };
  Scale scale = Scale::original;
  double scale_factor = 1;     // multiplies the factor above
  bool bf16 = false;           // the Newton-Schulz iteration's GEMMs read bf16; otherwise fp32
  bool per_shard = false;      // each rank of tensor parallelism takes its part as a matrix
  double others_lr_scale = 1;  // the learning rate of AdamW's parameters over that of the matrices
};

// Settings for the parameters in whose names `match` is found.
struct OptimizerGroup {
  std::string match;                   // a regular expression (ECMAScript)
  std::optional<double> lr_over_peak;  // the group's learning rate over the schedule's peak
  std::optional<double> lr_scale;      // multiplies the learning rate
  std::optional<double> weight_decay;
  bool adamw = false;  // under Muon: AdamW updates the group's matrices, too
};

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool decoupled_decay = true;  // false: weight_decay times the weight is added to the gradient
  double clip_grad = 1.0;       // the largest global gradient norm; 0: gradients are not clipped
  bool master_weights = true;
  bool stochastic_rounding = false;  // of bf16 weights without master weights
  DType moments = DType::f32;        // or bf16, with stochastic rounding
  MuonOptions muon;
  std::vector<OptimizerGroup> groups;  // the first that matches a parameter decides
};

// Linear warm-up over `warmup_steps`, `lr` until `decay_begin`, down to `min_lr` at `decay_end`,
// and `min_lr` after that.
struct LrScheduleOptions {
  LrDecay decay = LrDecay::cosine;  // from lr to min_lr; a constant rate stays lr
  double lr = 3e-4, min_lr = 0;
  double init_lr = 0;  // the warm-up rises from it
  int64_t warmup_steps = 0, decay_begin = 0, decay_end = 0;
};

// The factor on the loss, and thus on all gradients until they are unscaled for the update. It
// keeps small gradients within the range of fp16. A dynamic scale grows after `window` steps
// without an overflow, and falls after `hysteresis` overflows.
struct LossScaleOptions {
  bool on = false, dynamic = true;
  double initial = 65536;  // the first scale; the only one if not dynamic
  double min = 1;
  int64_t window = 2000;   // steps
  int64_t hysteresis = 1;  // overflows
};

// Options of 8-bit GEMMs, which the linears of the layers [begin, end) use.
struct Fp8Options {
  bool on = false;
  int64_t begin = 0, end = 0;
  LinearFormats formats;
  bool delayed = false;  // scales of tensors come from the maxima of earlier steps
  int64_t margin = 0, history = 1;
  bool most_recent = true;  // the newest maximum decides the scale; otherwise the largest one
  // Divides the rows of every 8-bit GEMM over tokens (plan/fp8_rows.h).
  int64_t rows_multiple = 1;

  bool has(int64_t layer) const { return on && layer >= begin && layer < end; }
};

}  // namespace mtrain::plan
