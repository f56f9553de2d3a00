#include "kernels/permute.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk: enough work to justify waking a thread

MT_INLINE float weight_of(const ConstSpan& weight_TK, int64_t choice) {
  return weight_TK.data ? data_of<float>(weight_TK)[choice] : 1.0f;
}

}  // namespace

void run(const Permute& a) {
  with_float(a.x_TH.dtype, [&]<class T>() {
    parallel(a.R, max_of(1, kGrain / max_of(a.H, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t choice = data_of<int32_t>(a.choice_R)[r];
        T* out = data_of<T>(a.out_RH) + r * a.H;
        if (choice < 0) {
          __builtin_memset(static_cast<void*>(out), 0, size_t(a.H) * sizeof(T));
          continue;
        }
        const T* x = data_of<T>(a.x_TH) + choice / a.K * a.H;
        const float w = weight_of(a.weight_TK, choice);
        for_lanes(a.H, [=](int64_t i, auto m) { store(out + i, w * load(x + i, m), m); });
      }
    });
  });
}

void run(const Unpermute& a) {
  with_float(a.x_RH.dtype, [&]<class T>() {
    parallel(a.T, max_of(1, kGrain / max_of(a.H * a.K, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* row = data_of<int32_t>(a.row_TK) + t * a.K;
        const T* x = data_of<T>(a.x_RH);
        T* out = data_of<T>(a.out_TH) + t * a.H;
        for_lanes(a.H, [&](int64_t i, auto m) {
          Vf sum{};
          for (int64_t k = 0; k < a.K; ++k)
            if (row[k] >= 0 && row[k] < a.R)
              sum += weight_of(a.weight_TK, t * a.K + k) * load(x + row[k] * a.H + i, m);
          store(out + i, sum, m);
        });
      }
    });
  });
}

void run(const UnpermuteWeightGrad& a) {
  constexpr int kUnroll = 4;
  with_float(a.x_RH.dtype, [&]<class T>() {
    parallel(a.T, max_of(1, kGrain / max_of(a.H * a.K, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t choice = begin * a.K; choice < end * a.K; ++choice) {
        const int64_t row = data_of<int32_t>(a.row_TK)[choice];
        Vf sum[kUnroll] = {};
        if (row >= 0 && row < a.R) {
          const T* x = data_of<T>(a.x_RH) + row * a.H;
          const T* dout = data_of<T>(a.dout_TH) + choice / a.K * a.H;
          for_lanes_unrolled<kUnroll>(
              a.H, [&](int64_t i, auto m, int u) { sum[u] += load(x + i, m) * load(dout + i, m); });
        }
        for (int u = 1; u < kUnroll; ++u) sum[0] += sum[u];
        data_of<float>(a.dweight_TK)[choice] = sum_lanes(sum[0]);
      }
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
