// The functions of activations' gates and their derivatives.
#pragma once
#include "kernels/activation.h"
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

constexpr float kC = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kA = 0.044715f;

struct Gate {
  float open, shut;  // shut = 1 - open, without the cancellation
};
// For bf16 and fp16, approximate instructions are used. Their errors are far below the rounding of
// the results; the exact functions would take longer than the memory accesses.
template <class T>
__device__ __forceinline__ Gate sigmoid_gate(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  float e, large;
  if constexpr (sizeof(T) == 2) {
    e = fast_exp2(-kLog2E * fabsf(x));
    large = fast_reciprocal(1.0f + e);
  } else {
    e = expf(-fabsf(x));
    large = 1.0f / (1.0f + e);
  }
  const float small = e * large;
  return x >= 0 ? Gate{large, small} : Gate{small, large};
}

template <bool TANH, class T>
__device__ __forceinline__ float gelu(float x) {
  if constexpr (TANH)
    return x * sigmoid_gate<T>(2 * kC * x * (1.0f + kA * x * x)).open;
  else
    return x * 0.5f * erfcf(-0.70710678118654752f * x);
}
template <bool TANH, class T>
__device__ __forceinline__ float gelu_slope(float x, float& y) {
  if constexpr (TANH) {
    const Gate g = sigmoid_gate<T>(2 * kC * x * (1.0f + kA * x * x));
    y = x * g.open;
    return g.open + y * g.shut * (2 * kC * (1.0f + 3 * kA * x * x));
  } else {
    const float open = 0.5f * erfcf(-0.70710678118654752f * x);
    y = x * open;
    return open + x * (0.3989422804014327f * expf(-0.5f * (x * x)));
  }
}

// Returns a gate's function of x, and its derivative.
template <GateFunction GATE, class T>
__device__ __forceinline__ float gate_value(float x) {
  if constexpr (GATE == GateFunction::silu)
    return x * sigmoid_gate<T>(x).open;
  else
    return gelu<true, T>(x);
}
template <GateFunction GATE, class T>
__device__ __forceinline__ float gate_slope(float x, float& y) {
  if constexpr (GATE == GateFunction::silu) {
    const Gate s = sigmoid_gate<T>(x);
    y = x * s.open;
    return s.open + y * s.shut;
  } else {
    return gelu_slope<true, T>(x, y);
  }
}

// with_gate(gate, [&]<GateFunction GATE>() { ... }) calls f with the gate's function.
template <class F>
void with_gate(GateFunction gate, const F& f) {
  if (gate == GateFunction::silu)
    f.template operator()<GateFunction::silu>();
  else
    f.template operator()<GateFunction::gelu_tanh>();
}

}  // namespace mtrain::kernels::cuda
