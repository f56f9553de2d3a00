// The update of AdamW, and of Adam.
#pragma once
#include <array>

#include "kernels/adamw.h"
#include "ops/operation.h"

namespace mtrain::ops {

struct AdamWHyper {
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;
  // The rounding of param if there is no master, and of bf16 moments.
  kernels::AdamWRounding rounding = {};
  bool decoupled_decay = true;  // false: weight_decay * weight is added to the gradient
  // Optional: AdamW::factors_in_memory (fp32) and keys_in_memory (int64).
  Tensor factors_3 = {}, keys_2 = {};
};
// Returns the values of AdamW::factors_in_memory for an update.
std::array<float, 3> adamw_factors(const AdamWHyper& hyper);
// The moments m and v are both fp32 or both bf16.
// Updates `master` and writes its bf16 or fp16 copy into `param`, which is optional. Without a
// master it updates `param` itself. A grad_scale that is not finite leaves everything unchanged.
void adamw(Stream& stream, const AdamWHyper& hyper, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& grad, const Tensor& grad_scale, const Tensor& param);

}  // namespace mtrain::ops
