#include "kernels/weighted_swiglu.h"

#include "kernels/cpu/vector/gate.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk: enough work to justify waking a thread

template <GateFunction GATE, class T>
void forward(const WeightedSwigluForward& a) {
  parallel(a.R, max_of(1, kGrain / max_of(a.F, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gate = data_of<T>(a.gate_up_R2F) + r * 2 * a.F;
      const T* up = gate + a.F;
      T* y = data_of<T>(a.y_RF) + r * a.F;
      const float w = data_of<float>(a.weight_R)[r];
      for_lanes(a.F, [=](int64_t i, auto m) {
        const Vf g = load(gate + i, m);
        store(y + i, gate_value<GATE>(g) * load(up + i, m) * w, m);
      });
    }
  });
}

template <GateFunction GATE, class T>
void backward(const WeightedSwigluBackward& a) {
  parallel(a.R, max_of(1, kGrain / max_of(a.F, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gate = data_of<T>(a.gate_up_R2F) + r * 2 * a.F;
      const T* up = gate + a.F;
      const T* dy = data_of<T>(a.dy_RF) + r * a.F;
      T* dgate = data_of<T>(a.dgate_up_R2F) + r * 2 * a.F;
      T* dup = dgate + a.F;
      T* y = a.y_RF.data ? data_of<T>(a.y_RF) + r * a.F : nullptr;
      const float w = data_of<float>(a.weight_R)[r];
      Vf sum{};
      for_lanes(a.F, [&](int64_t i, auto m) {
        const Vf g = load(gate + i, m), u = load(up + i, m), d = load(dy + i, m);
        Vf value;
        const Vf slope = gate_slope<GATE>(g, value);
        sum += d * (value * u);
        store(dgate + i, d * w * u * slope, m);
        store(dup + i, d * w * value, m);
        if (y) store(y + i, value * u * w, m);
      });
      data_of<float>(a.dweight_R)[r] = sum_lanes(sum);
    }
  });
}

}  // namespace

void run(const WeightedSwigluForward& a) {
  with_float(a.y_RF.dtype, [&]<class T>() {
    with_gate(a.gate, [&]<GateFunction GATE>() { forward<GATE, T>(a); });
  });
}

void run(const WeightedSwigluBackward& a) {
  with_float(a.dgate_up_R2F.dtype, [&]<class T>() {
    with_gate(a.gate, [&]<GateFunction GATE>() { backward<GATE, T>(a); });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
