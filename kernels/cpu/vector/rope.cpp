#include "kernels/rope.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

void run(const Rope& a) {
  const int64_t R = a.R;
  const int64_t tokens = max_of(1, 16384 / max_of(a.heads * a.D, 1));  // per chunk
  with_float(a.x.dtype, [&]<class T>() {
    parallel(a.T, tokens, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = data_of<int32_t>(a.position_T)[t];
        const float* cos = data_of<float>(a.cos_PR) + position * R;
        const float* sin = data_of<float>(a.sin_PR) + position * R;
        const float sign = a.backward ? -1.0f : 1.0f;
        for (int64_t h = 0; h < a.heads; ++h) {
          T* first = data_of<T>(a.x) + t * a.token_stride + h * a.D;
          T* second = first + R;
          for_lanes(R, [=](int64_t i, auto m) {
            const Vf c = load(cos + i, m), s = sign * load(sin + i, m);
            const Vf u = load(first + i, m), v = load(second + i, m);
            store(first + i, u * c - v * s, m);
            store(second + i, v * c + u * s, m);
          });
        }
      }
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
