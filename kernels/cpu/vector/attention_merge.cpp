#include "kernels/attention_merge.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

template <class T>
MT_INLINE void merge_head(const T* from, float from_lse, float* out, float& lse, int64_t D) {
  if (from_lse == -__builtin_inff()) return;
  // The larger lse has weight 1, the other e^-difference: nothing overflows, and -inf has weight 0.
  const bool larger = from_lse > lse;
  const float e = __builtin_expf(larger ? lse - from_lse : from_lse - lse);
  const float one = 1 / (1 + e), other = e * one;
  const float keep = larger ? other : one, take = larger ? one : other;
  lse = (larger ? from_lse : lse) + __builtin_log1pf(e);
  for_lanes(D, [=](int64_t d, auto m) {
    store(out + d, load(out + d, m) * keep + load(from + d, m) * take, m);
  });
}

}  // namespace

void run(const AttentionMerge& a) {
  constexpr int64_t kGrain = 32768;  // elements per chunk: more work than waking a thread
  const int64_t N = a.A * a.D;
  with_float(a.block_out_TN.dtype, [&]<class T>() {
    parallel(a.S * a.B, max_of(1, kGrain / N), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t s = t / a.B, b = t % a.B;
        for (int64_t h = 0; h < a.A; ++h)
          merge_head(data_of<T>(a.block_out_TN) + t * N + h * a.D,
                     data_of<float>(a.block_lse)[(b * a.A + h) * a.S + s],
                     data_of<float>(a.out_TN) + t * N + h * a.D,
                     data_of<float>(a.lse)[(b * a.A + h) * a.lse_stride + s], a.D);
      }
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
