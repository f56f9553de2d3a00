#include "kernels/activation.h"

#include "kernels/cpu/vector/amax.h"
#include "kernels/cpu/vector/gate.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk: enough work to justify waking a thread

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
      Vf recomputed;
      const Vf slope = gelu_slope<TANH>(load(x + i, m), recomputed);
      store(dx + i, load(dy + i, m) * slope, m);
      if (y) store(y + i, recomputed, m);
    });
    raise_amax(a.amax, dx + begin, end - begin);
  });
}

template <GateFunction GATE, class T>
void forward(const SwigluForward& a) {
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
        store(y + i, gate_value<GATE>(g) * load(up + i, m), m);
      });
      raise_amax(a.amax, y, a.F);
    }
  });
}

template <GateFunction GATE, class T>
void backward(const SwigluBackward& a) {
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
        Vf value;
        const Vf slope = gate_slope<GATE>(g, value);
        store(dgate + i, d * u * slope, m);
        store(dup + i, d * value, m);
        if (y) store(y + i, value * u, m);
      });
      raise_amax(a.amax, dgate, 2 * a.F);
    }
  });
}

}  // namespace

void run(const SwigluForward& a) {
  with_float(a.y_TF.dtype, [&]<class T>() {
    with_gate(a.gate, [&]<GateFunction GATE>() { forward<GATE, T>(a); });
  });
}

void run(const SwigluBackward& a) {
  with_float(a.dgate_up_T2F.dtype, [&]<class T>() {
    with_gate(a.gate, [&]<GateFunction GATE>() { backward<GATE, T>(a); });
  });
}

void run(const GeluForward& a) {
  with_float(a.y.dtype, [&]<class T>() { a.tanh ? forward<true, T>(a) : forward<false, T>(a); });
}

void run(const GeluBackward& a) {
  with_float(a.dx.dtype, [&]<class T>() { a.tanh ? backward<true, T>(a) : backward<false, T>(a); });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
