// Multiply-adds that depend only on registers, with enough of them in flight to hide their latency.
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

constexpr int kChains = kLanes >= 16 ? 24 : 12;

double fma_flops(int64_t steps, float seed, float* out);

// Runs `steps` rounds and returns their number of operations; *out keeps the compiler from removing
// them.
double fma_flops(int64_t steps, float seed, float* out) {
  Vf sum[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sum[c] = splat(seed * float(c));
  const Vf x = splat(0.999f + seed), y = splat(seed);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * x + y;
  }
  Vf total = splat(0);
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) total += sum[c];
  *out = sum_lanes(total);
  return 2.0 * kLanes * kChains * double(steps);
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
