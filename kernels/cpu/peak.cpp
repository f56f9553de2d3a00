#include "kernels/cpu/peak.h"

#include <algorithm>
#include <chrono>

#include "base/thread_pool.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/matmul_backend.h"

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

namespace avx512bf16 {
double dot_flops(int64_t steps);
}
namespace avx512amx {
double tile_flops(int64_t steps);
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

// Returns the best rate of each loop on one thread, over short rounds that alternate, so that other
// load on the host slows both equally. A minimum number of rounds keeps one slow round from
// deciding.
bool dot_products_are_faster() {
#ifdef MTRAIN_HAS_AVX512BF16
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 20'000;
  constexpr auto kDuration = std::chrono::milliseconds(40);
  constexpr int kRounds = 16;
  constexpr double kClearly = 1.25;
  double fp32 = 0, dots = 0;
  const auto round = [](double (*flops_of)(int64_t steps), double& best) {
    const auto start = Clock::now();
    const double flops = flops_of(kSteps);
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - start).count());
  };
  const auto begin = Clock::now();
  for (int i = 0; i < kRounds || Clock::now() - begin < kDuration; ++i)
    round(fma_flops, fp32), round(avx512bf16::dot_flops, dots);
  return dots > kClearly * fp32;
#else
  return false;
#endif
}

double measure(double (*flops_of)(int64_t steps), int64_t steps = 400'000) {
  using Clock = std::chrono::steady_clock;
  // The duration is long enough for the scheduler to give each thread a core of its own.
  constexpr auto kDuration = std::chrono::milliseconds(150);
  const int threads = current_threads();
  double best = 0;
  const auto begin = Clock::now();
  while (Clock::now() - begin < kDuration) {  // the best round: others may share the machine
    const auto start = Clock::now();
    double flops = 0;
    parallel_for(threads, 1, [&](int64_t i, int64_t) {
      const double mine = flops_of(steps);
      if (i == 0) flops = mine * threads;
    });
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

Bf16Arithmetic fastest_bf16_arithmetic() {
  if (supports(Bf16Arithmetic::tiles)) return Bf16Arithmetic::tiles;
  return supports(Bf16Arithmetic::dot_products) && dot_products_are_faster()
             ? Bf16Arithmetic::dot_products
             : Bf16Arithmetic::widened;
}

double measure_peak_flops(DType dtype) {
  double best = measure(fma_flops);
  if (dtype != DType::bf16) return best;
#ifdef MTRAIN_HAS_AVX512AMX
  // Rounds take a third of a millisecond: other processes seldom leave longer ones undisturbed.
  if (supports(Bf16Arithmetic::tiles))
    return std::max(best, measure(avx512amx::tile_flops, 20'000));
#endif
#ifdef MTRAIN_HAS_AVX512BF16
  if (supports(Bf16Arithmetic::dot_products)) best = std::max(best, measure(avx512bf16::dot_flops));
#endif
  return best;
}

}  // namespace mtrain::kernels::cpu
