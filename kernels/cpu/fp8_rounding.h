// Rounding to 8 bits, the same as in the GPU kernels.
#pragma once
#include <cmath>
#include <limits>

namespace mtrain::kernels::cpu {

// Returns |x|, or 0 if x is not finite.
template <class T>
float finite_size(T x) {
  const float size = std::abs(float(x));
  return std::isfinite(size) ? size : 0.0f;
}

template <class Y, class T>
Y quantized(T x, float scale) {
  const float v = float(x);
  return Y(std::isfinite(v) ? v * scale : std::numeric_limits<float>::quiet_NaN());
}

}  // namespace mtrain::kernels::cpu
