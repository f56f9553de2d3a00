#include "kernels/activation.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk: worth more than waking a thread

// The normal distribution function. For z = |x| / sqrt 2 >= 0: erfc(z) = exp(-z^2) t P(t) with t =
// 1 / (1 + 0.3 z), and P the Chebyshev interpolation of degree 8 over z in [0, 9.4] (relative
// error 2.4e-8); beyond, exp(-z^2) is 0 in fp32.
MT_INLINE Vf normal_cdf(Vf x) {
  const Vf z = vabs(x) * 0.70710678118654752f;
  const Vf t = 1.0f / (1.0f + 0.3f * z);
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

constexpr float kC = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kA = 0.044715f;

// With u = c (x + a x^3), (1 + tanh u) / 2 = sigmoid(2 u): no cancellation where it is small.
MT_INLINE Vf gelu_gate(Vf x, bool tanh) {
  return tanh ? sigmoid(2 * kC * x * (1.0f + kA * x * x)) : normal_cdf(x);
}
MT_INLINE Vf gelu_gate_slope(Vf x, Vf gate, bool tanh) {
  return tanh ? gate * (1.0f - gate) * (2 * kC * (1.0f + 3 * kA * x * x))
              : 0.3989422804014327f * vexp(-0.5f * (x * x));
}

}  // namespace

void run(const SwigluForward& a) {
  with_float(a.y_TF.dtype, [&]<class T>() {
    parallel(a.T, max_of(1, kGrain / max_of(a.F, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = data_of<T>(a.gate_up_T2F) + t * 2 * a.F;
        const T* up = gate + a.F;
        T* y = data_of<T>(a.y_TF) + t * a.F;
        for_lanes(a.F, [=](int64_t i, auto m) {
          const Vf g = load(gate + i, m);
          store(y + i, g * sigmoid(g) * load(up + i, m), m);
        });
      }
    });
  });
}

void run(const SwigluBackward& a) {
  with_float(a.dgate_up_T2F.dtype, [&]<class T>() {
    parallel(a.T, max_of(1, kGrain / max_of(a.F, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = data_of<T>(a.gate_up_T2F) + t * 2 * a.F;
        const T* up = gate + a.F;
        const T* dy = data_of<T>(a.dy_TF) + t * a.F;
        T* dgate = data_of<T>(a.dgate_up_T2F) + t * 2 * a.F;
        T* dup = dgate + a.F;
        T* y = a.y_TF.data ? data_of<T>(a.y_TF) + t * a.F : nullptr;
        for_lanes(a.F, [=](int64_t i, auto m) {
          const Vf g = load(gate + i, m), u = load(up + i, m), d = load(dy + i, m);
          const Vf s = sigmoid(g), silu = g * s;
          store(dgate + i, d * u * (s + silu * (1.0f - s)), m);
          store(dup + i, d * silu, m);
          if (y) store(y + i, silu * u, m);
        });
      }
    });
  });
}

void run(const GeluForward& a) {
  with_float(a.y.dtype, [&]<class T>() {
    const T* x = data_of<T>(a.x);
    T* y = data_of<T>(a.y);
    parallel(a.count, kGrain, [=, tanh = a.tanh](int64_t begin, int64_t end) {
      for_lanes(end - begin, [=](int64_t i, auto m) {
        const Vf v = load(x + begin + i, m);
        store(y + begin + i, v * gelu_gate(v, tanh), m);
      });
    });
  });
}

void run(const GeluBackward& a) {
  with_float(a.dx.dtype, [&]<class T>() {
    const T *x = data_of<T>(a.x), *dy = data_of<T>(a.dy);
    T *dx = data_of<T>(a.dx), *y = data_of<T>(a.y);
    parallel(a.count, kGrain, [=, tanh = a.tanh](int64_t begin, int64_t end) {
      for_lanes(end - begin, [=](int64_t j, auto m) {
        const int64_t i = begin + j;
        const Vf v = load(x + i, m), d = load(dy + i, m);
        const Vf gate = gelu_gate(v, tanh);
        store(dx + i, d * (gate + v * gelu_gate_slope(v, gate, tanh)), m);
        if (y) store(y + i, v * gate, m);
      });
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
