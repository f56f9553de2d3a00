// Measures the GEMMs of experts beside one dense GEMM of as many FLOPs, and an MLP of experts
// beside a dense MLP of as many active FLOPs, both forward and backward.
//   bench_experts [threads] [fp32|bf16] [rounds]
// The measurements of a line take turns within a round, and medians are printed: compare within one
// run. "zipf" gives expert e a share of the rows in proportion to 1 / (e + 1). The roofline is the
// longer of two times: a GEMM's FLOPs at the peak rate in registers, and its bytes at the rate at
// which memory is read.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/math.h"
#include "device/device.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/peak.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/permute.h"
#include "ops/reduce.h"
#include "ops/tuning.h"

using namespace mtrain;

namespace {

constexpr int64_t E = 8, K = 2, H = 512, F = 1408;

struct Bench {
  Stream& stream;
  DType dtype;
  int rounds;
  double peak = 0, bandwidth = 0;  // FLOP/s, bytes/s
  uint64_t key = 1;

  Tensor normal(Shape shape) {
    Tensor x = Tensor::empty(stream, shape, dtype);
    ops::fill_normal(stream, x, key++, 0, 0.1f);
    return x;
  }
  Tensor gradient(Shape shape) const {
    Tensor x = Tensor::empty(stream, shape, DType::f32);
    ops::fill(stream, x, 0);
    return x;
  }
  // Returns the median seconds of each; they take turns.
  std::vector<double> seconds(const std::vector<std::function<void()>>& all) const {
    std::vector<std::vector<double>> took(all.size());
    for (int round = -1; round < rounds; ++round)
      for (size_t i = 0; i < all.size(); ++i) {
        stream.synchronize();
        const auto start = std::chrono::steady_clock::now();
        all[i]();
        stream.synchronize();
        const std::chrono::duration<double> s = std::chrono::steady_clock::now() - start;
        if (round >= 0) took[i].push_back(s.count());
      }
    std::vector<double> medians;
    for (auto& t : took) {
      std::sort(t.begin(), t.end());
      medians.push_back(t[t.size() / 2]);
    }
    return medians;
  }
};

// Returns the bytes per second at which all threads read an array that no cache holds.
double read_bandwidth(const Bench& b) {
  const Tensor x = b.gradient({int64_t(1) << 27}), sum = Tensor::empty(b.stream, {1}, DType::f64);
  const double bytes = double(x.count()) * sizeof(float);
  return bytes / b.seconds({[&] { ops::sum_squares(b.stream, x, sum); }})[0];
}

// Returns how many of R rows each expert has.
std::vector<int64_t> shares(int64_t R, bool zipf) {
  double whole = 0, sum = 0;
  for (int64_t e = 0; e < E; ++e) whole += zipf ? 1.0 / double(e + 1) : 1.0;
  std::vector<int64_t> rows;
  int64_t before = 0;
  for (int64_t e = 0; e < E; ++e) {
    sum += zipf ? 1.0 / double(e + 1) : 1.0;
    const int64_t end = e + 1 == E ? R : int64_t(double(R) * sum / whole);
    rows.push_back(end - before);
    before = end;
  }
  return rows;
}
Tensor first_rows(const Bench& b, const std::vector<int64_t>& rows) {
  std::vector<int32_t> first{0};
  for (const int64_t n : rows) first.push_back(first.back() + int32_t(n));
  return Tensor::from_host(b.stream, {E + 1}, std::move(first));
}

struct Work {
  double flops, bytes;
};

void report(const Bench& b, const char* name, int64_t rows, const Work& work,
            const std::vector<std::function<void()>>& balanced_zipf_dense) {
  const std::vector<double> s = b.seconds(balanced_zipf_dense);
  const double least = std::max(work.flops / b.peak, work.bytes / b.bandwidth);
  const double gflops = work.flops * 1e-9;
  std::printf("%-20s %8ld %9.0f %9.0f %9.0f %10.2f %14.2f %9.2f\n", name, long(rows), gflops / s[0],
              gflops / s[1], gflops / s[2], s[2] / s[0], s[0] / s[1], least / s[0]);
  std::fflush(stdout);
}

// The three GEMMs of the weights (E, out, in).
void products(Bench& b, const char* weight, int64_t out, int64_t in, int64_t rows) {
  const int64_t R = rows * E;
  const Tensor balanced = first_rows(b, shares(R, false)), zipf = first_rows(b, shares(R, true));
  const Tensor w = b.normal({E, out, in}), one = b.normal({out, in});
  const Tensor x = b.normal({R, in}), dy = b.normal({R, out});
  const Tensor dw = b.gradient({E, out, in}), d_one = b.gradient({out, in});
  const double flops = 2.0 * double(R) * double(out) * double(in),
               rows_bytes = double(R * (out + in) * dtype_size(b.dtype)),
               matrices = double(E * out * in);
  const Work product{flops, rows_bytes + matrices * double(dtype_size(b.dtype))},
      weight_gradient{flops, rows_bytes + matrices * 2 * sizeof(float)};  // read and written
  const auto forward = [&](const Tensor& first) {
    return [&, first] { ops::grouped_matmul(b.stream, "fprop", x, w, first, true, x.dtype()); };
  };
  const auto input = [&](const Tensor& first) {
    return [&, first] { ops::grouped_matmul(b.stream, "dgrad", dy, w, first, false, dy.dtype()); };
  };
  const auto gradient = [&](const Tensor& first) {
    return [&, first] {
      ops::grouped_weight_gradient_into(b.stream, "wgrad", dy, x, first, dw, true);
    };
  };
  const std::string name = weight;
  report(b, (name + " fprop").c_str(), rows, product,
         {forward(balanced), forward(zipf),
          [&] { ops::matmul(b.stream, "fprop", x, one, {.b = true}, b.dtype); }});
  report(b, (name + " dgrad").c_str(), rows, product,
         {input(balanced), input(zipf),
          [&] { ops::matmul(b.stream, "dgrad", dy, one, {}, b.dtype); }});
  report(b, (name + " wgrad").c_str(), rows, weight_gradient,
         {gradient(balanced), gradient(zipf),
          [&] { ops::weight_gradient_into(b.stream, "wgrad", dy, x, d_one, true, {}); }});
}

// Forward and backward of a gated MLP over T tokens: with E experts of width F, K of them per
// token, router included; and dense with width K F.
struct Mlp {
  Bench& b;
  int64_t T;
  Tensor x, dy, router, up, down, wide_up, wide_down;
  Tensor d_router, d_up, d_down, d_wide_up, d_wide_down;

  Mlp(Bench& bench, int64_t tokens)
      : b(bench),
        T(tokens),
        x(b.normal({T, H})),
        dy(b.normal({T, H})),
        router(b.normal({E, H})),
        up(b.normal({E, 2 * F, H})),
        down(b.normal({E, H, F})),
        wide_up(b.normal({2 * K * F, H})),
        wide_down(b.normal({H, K * F})),
        d_router(b.gradient({E, H})),
        d_up(b.gradient({E, 2 * F, H})),
        d_down(b.gradient({E, H, F})),
        d_wide_up(b.gradient({2 * K * F, H})),
        d_wide_down(b.gradient({H, K * F})) {}

  void dense() const {
    Stream& s = b.stream;
    const Tensor gate_up = ops::matmul(s, "up", x, wide_up, {.b = true}, b.dtype);
    const Tensor act = ops::swiglu(s, gate_up).plain;
    ops::matmul(s, "down", act, wide_down, {.b = true}, b.dtype);
    const Tensor dact = ops::matmul(s, "down", dy, wide_down, {}, b.dtype);
    const Tensor dgate_up = ops::swiglu_backward(s, gate_up, dact).dx.plain;
    ops::weight_gradient_into(s, "down", dy, act, d_wide_down, true, {});
    ops::matmul(s, "up", dgate_up, wide_up, {}, b.dtype);
    ops::weight_gradient_into(s, "up", dgate_up, x, d_wide_up, true, {});
  }

  void experts() const {
    Stream& s = b.stream;
    const RouterForm form{.over_chosen = true};
    const Tensor logits = ops::matmul(s, "router", x, router, {.b = true}, DType::f32);
    const ops::Routing routing = ops::route_tokens(s, logits, K, form);
    const ops::ExpertRows rows = ops::expert_rows(s, routing.expert_TK, E);
    const Tensor x_RH = ops::permute(s, x, rows.choice_R, K);
    const Tensor weight =
        ops::permute(s, routing.weight_TK.view({T * K, 1}), rows.choice_R, 1).view({T * K});
    const Tensor gate_up =
        ops::grouped_matmul(s, "up", x_RH, up, rows.first_E1, true, x_RH.dtype());
    const Tensor act = ops::weighted_swiglu(s, gate_up, weight);
    const Tensor out = ops::grouped_matmul(s, "down", act, down, rows.first_E1, true, x_RH.dtype());
    ops::unpermute(s, out, rows.row_TK);
    const Tensor dout = ops::permute(s, dy, rows.choice_R, K);
    const Tensor dact =
        ops::grouped_matmul(s, "down", dout, down, rows.first_E1, false, x_RH.dtype());
    const auto d = ops::weighted_swiglu_backward(s, gate_up, weight, dact, {});
    ops::grouped_weight_gradient_into(s, "down", dout, act, rows.first_E1, d_down, true);
    const Tensor dx_RH =
        ops::grouped_matmul(s, "up", d.dgate_up_R2F, up, rows.first_E1, false, x_RH.dtype());
    ops::grouped_weight_gradient_into(s, "up", d.dgate_up_R2F, x_RH, rows.first_E1, d_up, true);
    const Tensor dx = ops::unpermute(s, dx_RH, rows.row_TK);
    const Tensor dweight =
        ops::unpermute(s, d.dweight_R.view({T * K, 1}), rows.row_TK.view({T * K, 1}));
    const Tensor dlogits = ops::in_dtype(
        s, ops::route_tokens_grad(s, logits, routing, dweight.view({T, K}), form), b.dtype);
    ops::weight_gradient_into(s, "router", dlogits, x, d_router, true, {});
    ops::add_into(s, ops::matmul(s, "router", dlogits, router, {}, b.dtype), dx);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const DType dtype = argc > 2 && std::string(argv[2]) == "bf16" ? DType::bf16 : DType::f32;
  const auto device = Device::cpu(threads);
  Bench b{device->stream(device::StreamKind::compute), dtype, argc > 3 ? std::atoi(argv[3]) : 9};
  b.peak = ops::measured_peak_flops(*device, dtype);
  b.bandwidth = read_bandwidth(b);
  std::printf("%d threads, %s, %s; %ld experts, %ld of a token, hidden %ld, width %ld\n", threads,
              std::string(dtype_name(dtype)).c_str(), kernels::cpu::isa_name(kernels::cpu::isa()),
              long(E), long(K), long(H), long(F));
  std::printf("peak of the registers %.0f GFLOP/s, memory is read at %.1f GB/s\n", b.peak * 1e-9,
              b.bandwidth * 1e-9);
  std::printf("%-20s %8s %9s %9s %9s %10s %14s %9s\n", "GFLOP/s", "rows of", "balanced", "zipf",
              "one dense", "balanced /", "zipf /", "of the");
  std::printf("%-20s %8s %9s %9s %9s %10s %14s %9s\n", "", "an expert", "", "", "", "dense",
              "balanced", "roofline");
  for (const int64_t rows : {64, 256, 1024}) {
    products(b, "gate_up", 2 * F, H, rows);
    products(b, "down", H, F, rows);
  }
  for (const int64_t T : {1024, 2048, 4096}) {
    Mlp mlp(b, T);
    const std::vector<double> s = b.seconds({[&] { mlp.experts(); }, [&] { mlp.dense(); }});
    std::printf(
        "MLP of %ld tokens, forward and backward: experts %.1f ms, dense %.1f ms: %.2f of its "
        "speed\n",
        long(T), 1e3 * s[0], 1e3 * s[1], s[1] / s[0]);
    std::fflush(stdout);
  }
}
