// The functions of activations' gates and their derivatives.
#pragma once
#include "kernels/activation.h"
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// The normal distribution function. For z = |x| / sqrt 2 >= 0: erfc(z) = exp(-z^2) t P(t) with t =
// 1 / (1 + 0.3 z), and P the Chebyshev interpolation of degree 8 over z in [0, 9.4] (relative error
// 2.4e-8); for larger z, exp(-z^2) is 0 in fp32.
MT_INLINE Vf normal_cdf(Vf x) {
  const Vf z = vabs(x) * 0.70710678118654752f;
  const Vf t = reciprocal(1.0f + 0.3f * z);
  Vf p = splat(-1.304193342e-01f);
  p = p * t + 4.902051398e-01f;
  p = p * t - 5.225359621e-01f;
  p = p * t + 5.603273815e-01f;
  p = p * t - 1.040551479e-01f;
  p = p * t + 2.192762348e-01f;
  p = p * t + 1.471231408e-01f;
  p = p * t + 1.709027154e-01f;
  p = p * t + 1.691758123e-01f;
  const Vf tail = 0.5f * t * p * vexp(-(z * z));
  return x > 0.0f ? 1.0f - tail : tail;
}

inline constexpr float kC = 0.79788456080286536f;  // sqrt(2 / pi)
inline constexpr float kA = 0.044715f;

struct Gate {
  Vf open, shut;  // shut = 1 - open, without the cancellation
};
MT_INLINE Gate sigmoid_gate(Vf x) {
  const Vf e = vexp(-x), open = reciprocal(1.0f + e);
  return {open, e * open};
}

// gelu as y = x gate(x), and its derivative. With u = c (x + a x^3), (1 + tanh u) / 2 = sigmoid(2
// u), which is accurate where it is small.
template <bool TANH>
MT_INLINE Vf gelu(Vf x) {
  if constexpr (TANH)
    return x * sigmoid(2 * kC * x * (1.0f + kA * x * x));
  else
    return x * normal_cdf(x);
}
template <bool TANH>
MT_INLINE Vf gelu_slope(Vf x, Vf& y) {
  if constexpr (TANH) {
    const Gate g = sigmoid_gate(2 * kC * x * (1.0f + kA * x * x));
    y = x * g.open;
    return g.open + y * g.shut * (2 * kC * (1.0f + 3 * kA * x * x));
  } else {
    const Vf open = normal_cdf(x);
    y = x * open;
    return open + x * (0.3989422804014327f * vexp(-0.5f * (x * x)));
  }
}

// Returns a gate's function of x, and its derivative.
template <GateFunction GATE>
MT_INLINE Vf gate_value(Vf x) {
  if constexpr (GATE == GateFunction::silu)
    return x * sigmoid(x);
  else
    return gelu<true>(x);
}
template <GateFunction GATE>
MT_INLINE Vf gate_slope(Vf x, Vf& y) {
  if constexpr (GATE == GateFunction::silu) {
    const Gate s = sigmoid_gate(x);
    y = x * s.open;
    return s.open + y * s.shut;
  } else {
    return gelu_slope<true>(x, y);
  }
}

// with_gate(gate, [&]<GateFunction GATE>() { ... }) calls f with the gate's function.
template <class F>
MT_INLINE void with_gate(GateFunction gate, const F& f) {
  if (gate == GateFunction::silu)
    f.template operator()<GateFunction::silu>();
  else
    f.template operator()<GateFunction::gelu_tanh>();
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
