// The rate of dot products of bf16 pairs without loads or stores.
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// Runs `steps` rounds of independent chains, enough of them to hide an instruction's latency, and
// returns their number of operations: a dot product adds two products to each fp32 lane.
double dot_flops(int64_t steps);
double dot_flops(int64_t steps) {
  constexpr int kChains = 24;
  volatile float seed = 1e-3f, result = 0;  // unknown to the compiler
  const __m512 ones = (__m512)splat(1 + seed);
  const __m512bh x = _mm512_cvtne2ps_pbh(ones, ones);
  __m512 sum[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sum[c] = (__m512)splat(seed * float(c));
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbf16_ps(sum[c], x, x);
  }
  float total = 0;
  for (const __m512& s : sum) total += ((Vf)s)[0];
  result = total;
  (void)result;
  return 4.0 * kLanes * kChains * double(steps);
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
