#include "kernels/cpu/peak.h"

#include <algorithm>
#include <chrono>

#include "base/thread_pool.h"
#include "kernels/cpu/dispatch.h"

namespace mtrain::kernels::cpu {

namespace generic {
double fma_flops(int64_t steps, float seed, float* out);
}
namespace avx2 {
double fma_flops(int64_t steps, float seed, float* out);
}
namespace avx512 {
double fma_flops(int64_t steps, float seed, float* out);
}

namespace {

double fma_flops(int64_t steps) {
  volatile float seed = 1e-3f, result = 0;  // unknown to the compiler
  float out = 0;
  double flops = 0;
  switch (isa()) {
#ifdef MTRAIN_HAS_AVX512
    case Isa::avx512: flops = avx512::fma_flops(steps, seed, &out); break;
#endif
#ifdef MTRAIN_HAS_AVX2
    case Isa::avx2: flops = avx2::fma_flops(steps, seed, &out); break;
#endif
    default: flops = generic::fma_flops(steps, seed, &out);
  }
  result = out;
  (void)result;
  return flops;
}

}  // namespace

double measure_peak_flops() {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 400'000;
  // Long enough for the scheduler to give each thread a core of its own.
  constexpr auto kDuration = std::chrono::milliseconds(150);
  const int threads = current_threads();
  double best = 0;
  const auto begin = Clock::now();
  while (Clock::now() - begin < kDuration) {  // the best round: others may share the machine
    const auto start = Clock::now();
    double flops = 0;
    parallel_for(threads, 1, [&](int64_t i, int64_t) {
      const double mine = fma_flops(kSteps);
      if (i == 0) flops = mine * threads;
    });
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace mtrain::kernels::cpu
