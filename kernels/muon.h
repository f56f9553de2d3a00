// The element-wise parts of Muon (Jordan et al. 2024): a matrix's direction from its momentum, its
// normalization before the Newton-Schulz iteration, and the update of its weights.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// With g = grad_scale * grad: momentum += (1 - beta) (g - momentum), and grad becomes the
// direction: the new momentum, or g + beta (momentum - g) with `nesterov`. If grad_scale is not
// finite, the momentum stays and the direction is 0.
struct MuonDirection {
  Span momentum, grad;   // fp32
  ConstSpan grad_scale;  // optional, one fp32
  float beta;
  bool nesterov;
};
// x /= max(sqrt(sum_squares), eps).
struct MuonNormalize {
  Span x;                 // fp32
  ConstSpan sum_squares;  // one fp64
  float eps;
};
// master -= lr (direction + weight_decay * master), and writes its 16-bit copy into `param`, which
// is optional. If grad_scale is not finite, nothing is written.
struct MuonUpdate {
  Span master;          // fp32
  ConstSpan direction;  // fp32
  Span param;           // bf16 or fp16
  ConstSpan grad_scale;
  float lr, weight_decay;
  // Optional, two fp32: lr, and the weight's own factor. Read when the launch runs; they replace
  // those that follow from lr and weight_decay.
  ConstSpan factors_in_memory = {};
};
// Returns the weight's own factor, 1 - lr * weight_decay.
float keep_of(const MuonUpdate&);

namespace cpu {
void run(const MuonDirection&);
void run(const MuonNormalize&);
void run(const MuonUpdate&);
}  // namespace cpu
namespace cuda {
void run(const MuonDirection&, CUstream_st*);
void run(const MuonNormalize&, CUstream_st*);
void run(const MuonUpdate&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
