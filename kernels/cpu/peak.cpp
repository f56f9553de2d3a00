#include "kernels/cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/peak_rounds.h"

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

// Compares the best rates of the two loops on one thread. Short rounds of both alternate: other
// load on the host then slows both equally. A minimum number of rounds keeps one slow round from
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

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns how many steps of the loop take about a fifth of a millisecond.
int64_t steps_of_a_burst(double (*flops_of)(int64_t steps)) {
  constexpr double kBurst = 2e-4;
  constexpr int64_t kTrial = 1000;
  double fastest = 1;
  for (int i = 0; i < 40; ++i) {
    const double begin = seconds_now();
    flops_of(kTrial);
    fastest = std::min(fastest, seconds_now() - begin);
  }
  return std::clamp(int64_t(kBurst / std::max(fastest, 1e-7) * double(kTrial)), kTrial,
                    1000 * kTrial);
}

// Runs the loop on all threads of the pool for 20 ms. A thread that gets a core late runs one
// burst. So do all but the first if the pool is busy with another stream's work, and the threads'
// parts run one after the other.
Round run_round(double (*flops_of)(int64_t steps), int64_t steps) {
  constexpr double kRound = 2e-2;
  const int threads = current_threads();
  Round round(static_cast<size_t>(threads));
  const double until = seconds_now() + kRound;
  parallel_for(threads, 1, [&](int64_t i, int64_t) {
    std::vector<Burst>& mine = round[size_t(i)];
    mine.reserve(1000);
    double begin = seconds_now();
    do {
      const double operations = flops_of(steps), end = seconds_now();
      mine.push_back({begin, end, operations});
      begin = end;
    } while (begin < until);
  });
  return round;
}

double measure(double (*flops_of)(int64_t steps)) {
  const int64_t steps = steps_of_a_burst(flops_of);
  return best_rate([&] { return run_round(flops_of, steps); }, seconds_now);
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
  if (supports(Bf16Arithmetic::tiles)) return std::max(best, measure(avx512amx::tile_flops));
#endif
#ifdef MTRAIN_HAS_AVX512BF16
  if (supports(Bf16Arithmetic::dot_products)) best = std::max(best, measure(avx512bf16::dot_flops));
#endif
  return best;
}

}  // namespace mtrain::kernels::cpu
