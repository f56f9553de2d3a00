// The largest absolute value that a kernel has written, for the scales of 8-bit numbers.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// Raises amax[0] to the largest finite |x| of n elements if that is larger, and if amax is present.
// Absolute values compare like their bits; threads may call this in any order. `x` has just been
// written and is in the cache.
template <class T>
MT_INLINE void raise_amax(const Span& amax, const T* x, int64_t n) {
  if (!amax.data) return;
  Vi most = {};
  for_lanes(n, [&](int64_t i, auto m) {
    const Vi size = (Vi)((Vu)load(x + i, m) & 0x7fffffff);
    const Vi finite = size < 0x7f800000 ? size : Vi{};
    most = finite > most ? finite : most;
  });
  int32_t size = 0;
  for (int i = 0; i < kLanes; ++i) size = most[i] > size ? most[i] : size;
  auto* const at = static_cast<int32_t*>(amax.data);
  int32_t known = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (size > known &&
         !__atomic_compare_exchange_n(at, &known, size, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
