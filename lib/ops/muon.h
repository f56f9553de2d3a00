// The element-wise operations of Muon; kernels/muon.h has the rules. All tensors are flat and fp32
// unless a comment says otherwise.
#pragma once
#include <array>

#include "ops/operation.h"

namespace mtrain::ops {

// Updates the momentum with the gradient, and replaces the gradient by the direction. A grad_scale
// (one element) that is not finite keeps the momentum and makes the direction 0.
void muon_direction(Stream& stream, const Tensor& momentum, const Tensor& grad,
                    const Tensor& grad_scale, float beta, bool nesterov);
// Divides x by its norm, the root of `sum_squares` (fp64, one element), or by eps if that is
// larger.
void muon_normalize(Stream& stream, const Tensor& x, const Tensor& sum_squares, float eps);
// Returns the values of MuonUpdate::factors_in_memory for an update.
std::array<float, 2> muon_factors(float lr, float weight_decay);
// Updates `master`, and writes its bf16 or fp16 copy into `param`, which is optional. A grad_scale
// that is not finite leaves everything as it is. `factors_2` is optional, and replaces the factors
// that follow from lr and weight_decay (MuonUpdate::factors_in_memory).
void muon_update(Stream& stream, const Tensor& master, const Tensor& direction,
                 const Tensor& grad_scale, const Tensor& param, float lr, float weight_decay,
                 const Tensor& factors_2 = {});

}  // namespace mtrain::ops
