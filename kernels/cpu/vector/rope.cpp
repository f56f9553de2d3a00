#include "kernels/rope.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_scratch.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

template <class T>
MT_INLINE void rotate_halves(const Rope& a, const float* cos, const float* sin, float sign,
                             T* first) {
  const int64_t R = a.R;
  T* second = first + R;
  for_lanes(R, [=](int64_t i, auto m) {
    const Vf c = load(cos + i, m), s = sign * load(sin + i, m);
    const Vf u = load(first + i, m), v = load(second + i, m);
    store(first + i, u * c - v * s, m);
    store(second + i, v * c + u * s, m);
  });
}

// `cos2` and `sin2` have both elements of each lane; the sines of the first elements are negative.
template <class T>
MT_INLINE void rotate_pairs(const Rope& a, const float* cos2, const float* sin2, T* first) {
  Vi other;
  for (int i = 0; i < kLanes; ++i) other[i] = i ^ 1;
  for_lanes(2 * a.R, [=](int64_t i, auto m) {
    const Vf x = load(first + i, m);
    const Vf swapped = __builtin_shuffle(x, other);
    store(first + i, x * load(cos2 + i, m) + swapped * load(sin2 + i, m), m);
  });
}

}  // namespace

void run(const Rope& a);
void run(const Rope& a) {
  const int64_t R = a.R;
  const int64_t tokens = max_of(1, 16384 / max_of(a.heads * a.D, 1));  // per chunk
  with_float(a.x.dtype, [&]<class T>() {
    parallel(a.T, tokens, [&](int64_t begin, int64_t end) {
      float* const cos2 = a.interleaved ? thread_scratch(4 * R) : nullptr;
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = data_of<int32_t>(a.position_T)[t];
        const float* cos = data_of<float>(a.cos_PR) + position * R;
        const float* sin = data_of<float>(a.sin_PR) + position * R;
        const float sign = a.backward ? -1.0f : 1.0f;
        for (int64_t i = 0; a.interleaved && i < R; ++i) {
          cos2[2 * i] = cos2[2 * i + 1] = cos[i];
          cos2[2 * (R + i)] = -sign * sin[i];
          cos2[2 * (R + i) + 1] = sign * sin[i];
        }
        for (int64_t h = 0; h < a.heads; ++h) {
          T* first = data_of<T>(a.x) + t * a.token_stride + h * a.D + a.first;
          a.interleaved ? rotate_pairs(a, cos2, cos2 + 2 * R, first)
                        : rotate_halves(a, cos, sin, sign, first);
        }
      }
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
