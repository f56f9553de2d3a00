// Measures GFLOP/s of attention, forward and backward, counting the operations that a causal mask
// leaves.
//   bench_attention [threads] [fp32|bf16|tiles] [rounds] [part of a name]
// `tiles` is bf16 multiplied by AMX tiles.
// Prints medians; with MTRAIN_BENCH_BEST=1 the best rounds, for a machine that others use too.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/peak.h"
#include "kernels/elementwise.h"

using namespace mtrain;
using namespace mtrain::kernels;

namespace {

struct Case {
  const char* name;
  int64_t S, B, A, G, D, Dv;
};
constexpr Case kCases[] = {
    {"A", 256, 8, 8, 4, 32, 32},        {"B", 512, 4, 8, 4, 64, 64},
    {"C", 512, 2, 12, 12, 64, 64},      {"2048 x 128", 2048, 1, 8, 2, 128, 128},
    {"D 96", 512, 2, 8, 8, 96, 96},     {"D 256", 1024, 1, 4, 1, 256, 256},
    {"latent", 1024, 1, 8, 8, 192, 128}};

struct Operand {
  std::vector<float> wide;
  std::vector<bf16> narrow;
  Span span;
  Operand(int64_t count, DType dtype) : wide(size_t(count)), narrow(size_t(count)) {
    fill_normal(1, 0, count, 1.0f, wide.data());
    span = {wide.data(), count, DType::f32};
    if (dtype == DType::f32) return;
    const Span converted{narrow.data(), count, DType::bf16};
    cpu::run(Cast{.x = span, .y = converted});
    span = converted;
  }
};

template <class F>
double median_seconds(int rounds, const F& f) {
  std::vector<double> seconds;
  for (int round = -1; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (round >= 0) seconds.push_back(took.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return std::getenv("MTRAIN_BENCH_BEST") ? seconds[0] : seconds[seconds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string type = argc > 2 ? argv[2] : "fp32";
  const DType dtype = type == "fp32" ? DType::f32 : DType::bf16;
  const Bf16Arithmetic bf16 = type == "tiles" ? Bf16Arithmetic::tiles : Bf16Arithmetic::widened;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  const std::string only = argc > 4 ? argv[4] : "";
  ThreadPool pool(threads);
  const ThreadPool::Scope scope(&pool);
  const double peak = cpu::measure_peak_flops();
  std::printf("%d threads, %s, %s, peak %.0f GFLOP/s\n", threads, type.c_str(),
              cpu::isa_name(cpu::isa()), peak * 1e-9);
  for (const Case& c : kCases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    const int64_t T = c.S * c.B, width = c.A * c.Dv;
    const int64_t k0 = c.A * c.D, v0 = k0 + c.G * c.D, qkv_width = v0 + c.G * c.Dv;
    const Operand qkv(T * qkv_width, dtype), out(T * width, dtype), dout(T * width, dtype);
    const Operand dqkv(T * qkv_width, dtype), lse(T * c.A, DType::f32);
    const auto part = [&](const Operand& x, int64_t first) {
      return Span{x.span.as<char>() + first * dtype_size(dtype), x.span.count - first, dtype};
    };
    const AttentionShape shape{.B = c.B,
                               .Sq = c.S,
                               .Skv = c.S,
                               .A = c.A,
                               .G = c.G,
                               .D = c.D,
                               .Dv = c.Dv,
                               .scale = 1 / std::sqrt(float(c.D))};
    const HeadView q{part(qkv, 0), qkv_width}, k{part(qkv, k0), qkv_width},
        v{part(qkv, v0), qkv_width};
    const double forward = median_seconds(rounds, [&] {
      cpu::run(AttentionForward{.shape = shape,
                                .q = q,
                                .k = k,
                                .v = v,
                                .out = {out.span, width},
                                .lse = lse.span,
                                .bf16 = bf16});
    });
    const double backward = median_seconds(rounds, [&] {
      cpu::run(AttentionBackward{.shape = shape,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = {out.span, width},
                                 .dout = {dout.span, width},
                                 .lse = lse.span,
                                 .dq = {part(dqkv, 0), qkv_width},
                                 .dk = {part(dqkv, k0), qkv_width},
                                 .dv = {part(dqkv, v0), qkv_width},
                                 .bf16 = bf16});
    });
    // Forward has a GEMM for scores and one for values; backward three and two.
    const double flops = 2.0 * double(c.B * c.A) * double(c.S) * double(c.S + 1) / 2,
                 ahead = flops * double(c.D + c.Dv), back = flops * double(3 * c.D + 2 * c.Dv);
    std::printf(
        "%-12s S %5ld B %ld A %2ld G %2ld D %3ld %3ld  forward %7.3f ms %5.0f (%2.0f %%)  backward "
        "%7.3f ms %5.0f (%2.0f %%)\n",
        c.name, long(c.S), long(c.B), long(c.A), long(c.G), long(c.D), long(c.Dv), forward * 1e3,
        ahead / forward * 1e-9, 100 * ahead / forward / peak, backward * 1e3,
        back / backward * 1e-9, 100 * back / backward / peak);
  }
}
