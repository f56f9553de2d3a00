// Measures GFLOP/s of the matmuls of three models: our GEMMs, and beside them those of oneDNN and
// OpenBLAS if they are installed. All use the widest instruction set that MTRAIN_CPU_ISA allows.
//   bench_matmul [threads] [fp32|bf16] [rounds] [part of a name]
// Rounds visit all columns of a shape in turn and medians are printed (MTRAIN_BENCH_BEST=1: the
// best rounds, for a machine that others use too): compare within one run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/math.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "gemm_peers/gemm_peers.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/peak.h"
#include "kernels/elementwise.h"

using namespace mtrain;
using namespace mtrain::kernels;

namespace {

struct Weight {
  const char* name;
  int64_t T, out, in;  // y_T,out = x_T,in w_out,in^T
};

constexpr Weight kWeights[] = {
    {"A qkv", 2048, 512, 256},      {"A proj", 2048, 256, 256},     {"A gate_up", 2048, 1408, 256},
    {"A down", 2048, 256, 704},     {"A head", 2048, 512, 256},     {"B qkv", 2048, 1024, 512},
    {"B proj", 2048, 512, 512},     {"B gate_up", 2048, 2816, 512}, {"B down", 2048, 512, 1408},
    {"B head", 2048, 8192, 512},    {"C qkv", 1024, 2304, 768},     {"C proj", 1024, 768, 768},
    {"C gate_up", 1024, 4096, 768}, {"C down", 1024, 768, 2048},    {"C head", 256, 50304, 768}};

struct Operand {
  std::vector<float> wide;
  std::vector<bf16> narrow;
  Span span;
  Operand(int64_t count, DType dtype) : wide(size_t(count)) {
    fill_normal(1, 0, count, 1.0f, wide.data());
    span = {wide.data(), count, DType::f32};
    if (dtype == DType::f32) return;
    narrow.resize(size_t(count));
    const Span converted{narrow.data(), count, DType::bf16};
    cpu::run(Cast{.x = span, .y = converted});
    span = converted;
  }
};

struct Column {
  std::string name;
  std::function<void(const Matmul&)> run;
};

std::vector<Column> columns_of(DType dtype) {
  std::vector<Column> columns;
  const Span none{nullptr, 0, dtype};
  for (cpu::MatmulBackend b : cpu::available_backends({.a = none, .b = none}))
    columns.push_back(
        {std::string(cpu::backend_name(b)), [b](const Matmul& m) { cpu::run(m, b); }});
  for (const bench::GemmPeer& peer : bench::gemm_peers(dtype))
    columns.push_back({peer.name, peer.run});
  return columns;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return std::getenv("MTRAIN_BENCH_BEST") ? x[0] : x[x.size() / 2];
}

void report(const std::string& name, const Matmul& m, const std::vector<Column>& columns,
            int rounds) {
  std::vector<std::vector<double>> seconds(columns.size());
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      columns[i].run(m);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round >= 0) seconds[i].push_back(took.count());
    }
  const double flops = 2.0 * double(m.M) * double(m.N) * double(m.K);
  std::printf("%-18s %6ld %6ld %6ld", name.c_str(), long(m.M), long(m.N), long(m.K));
  for (const auto& s : seconds) std::printf(" %12.0f", flops / median(s) * 1e-9);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const DType dtype = argc > 2 && std::string(argv[2]) == "bf16" ? DType::bf16 : DType::f32;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 9;
  const std::string only = argc > 4 ? argv[4] : "";
  const std::vector<Column> columns = columns_of(dtype);  // before there are threads
  ThreadPool pool(threads);
  const ThreadPool::Scope scope(&pool);
  std::printf("%d threads, %s, %s, fp32 peak %.0f GFLOP/s\n", threads,
              std::string(dtype_name(dtype)).c_str(), cpu::isa_name(cpu::isa()),
              cpu::measure_peak_flops() * 1e-9);
  std::printf("%-18s %6s %6s %6s", "GFLOP/s", "M", "N", "K");
  for (const Column& column : columns) std::printf(" %12s", column.name.c_str());
  std::printf("\n");
  for (const Weight& w : kWeights) {
    if (std::string(w.name).find(only) == std::string::npos) continue;
    const Operand x(w.T * w.in, dtype), weight(w.out * w.in, dtype), y(w.T * w.out, dtype);
    const Operand dx(w.T * w.in, dtype), dweight(w.out * w.in, DType::f32);
    report(w.name + std::string(" fprop"),
           {.a = x.span,
            .b = weight.span,
            .c_MN = y.span,
            .M = w.T,
            .N = w.out,
            .K = w.in,
            .trans_b = true},
           columns, rounds);
    report(w.name + std::string(" dgrad"),
           {.a = y.span, .b = weight.span, .c_MN = dx.span, .M = w.T, .N = w.in, .K = w.out},
           columns, rounds);
    report(w.name + std::string(" wgrad"),
           {.a = y.span,
            .b = x.span,
            .c_MN = dweight.span,
            .M = w.out,
            .N = w.in,
            .K = w.T,
            .trans_a = true,
            .accumulate = true},
           columns, rounds);
  }
}
