// Rotary position embedding; kernels/rope.h has the rules.
#pragma once
#include "ops/operand.h"
#include "ops/operation.h"

namespace mtrain::ops {

// Rotates the first `heads` heads of each token in place: the first 2 R of a head's D elements.
// `backward` rotates by the negative angle. The tables are fp32, the positions int32. x is plain.
// `last`: no kernel changes these heads later, so that their maximum is entered into x_TN.amax, if
// it is present.
void rope(Stream& stream, const Written& x_TN, const Tensor& cos_PR, const Tensor& sin_PR,
          const Tensor& position_T, int64_t heads, int64_t D, bool backward, bool last = true);
// The same for interleaved elements: rotates the last 2 R of a head's D elements. A lane consists
// of two neighbours.
void rope_interleaved(Stream& stream, const Tensor& x_TN, const Tensor& cos_PR,
                      const Tensor& sin_PR, const Tensor& position_T, int64_t heads, int64_t D,
                      bool backward);

}  // namespace mtrain::ops
