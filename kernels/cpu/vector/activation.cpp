#include "kernels/activation.h"

#include "kernels/cpu/vector/amax.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk: enough work to wake a thread for

// The normal distribution function. For z = |x| / sqrt 2 >= 0: erfc(z) = exp(-z^2) t P(t) with t =
// 1 / (1 + 0.3 z), and P the Chebyshev interpolation of degree 8 over z in [0, 9.4] (relative
// error 2.4e-8); beyond, exp(-z^2) is 0 in fp32.
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

constexpr float kC = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kA = 0.044715f;

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

template <bool TANH, class T>
void forward(const GeluForward& a) {
  const T* x = data_of<T>(a.x);
  T* y = data_of<T>(a.y);
  parallel(a.count, kGrain, [=, &a](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t i, auto m) {
      store(y + begin + i, gelu<TANH>(load(x + begin + i, m)), m);
    });
    raise_amax(a.amax, y + begin, end - begin);
  });
}

template <bool TANH, class T>
void backward(const GeluBackward& a) {
  const T *x = data_of<T>(a.x), *dy = data_of<T>(a.dy);
  T *dx = data_of<T>(a.dx), *y = data_of<T>(a.y);
  parallel(a.count, kGrain, [=, &a](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t j, auto m) {
      const int64_t i = begin + j;
      Vf again;
      const Vf slope = gelu_slope<TANH>(load(x + i, m), again);
      store(dx + i, load(dy + i, m) * slope, m);
      if (y) store(y + i, again, m);
    });
    raise_amax(a.amax, dx + begin, end - begin);
  });
}

}  // namespace

void run(const SwigluForward& a) {
  with_float(a.y_TF.dtype, [&]<class T>() {
    parallel(a.T, max_of(1, kGrain / max_of(a.F, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = data_of<T>(a.gate_up_T2F) + t * 2 * a.F;
        const T* up = gate + a.F;
        T* y = data_of<T>(a.y_TF) + t * a.F;
        for_lanes(a.F, [=, row = 2 * a.F](int64_t i, auto m) {
          const Vf g = load(gate + i, m);
          prefetch(gate + row + i);
          prefetch(up + row + i);
          prefetch_to_write(y + row / 2 + i);
          store(y + i, g * sigmoid(g) * load(up + i, m), m);
        });
        raise_amax(a.amax, y, a.F);
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
        for_lanes(a.F, [=, row = 2 * a.F](int64_t i, auto m) {
          prefetch(gate + row + i);
          prefetch(up + row + i);
          prefetch(dy + row / 2 + i);
          prefetch_to_write(dgate + row + i);
          prefetch_to_write(dup + row + i);
          const Vf g = load(gate + i, m), u = load(up + i, m), d = load(dy + i, m);
          const Gate s = sigmoid_gate(g);
          const Vf silu = g * s.open;
          store(dgate + i, d * u * (s.open + silu * s.shut), m);
          store(dup + i, d * silu, m);
          if (y) store(y + i, silu * u, m);
        });
        raise_amax(a.amax, dgate, 2 * a.F);
      }
    });
  });
}

void run(const GeluForward& a) {
  with_float(a.y.dtype, [&]<class T>() { a.tanh ? forward<true, T>(a) : forward<false, T>(a); });
}

void run(const GeluBackward& a) {
  with_float(a.dx.dtype, [&]<class T>() { a.tanh ? backward<true, T>(a) : backward<false, T>(a); });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
