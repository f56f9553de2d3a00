// What the CUDA kernels reach on this GPU: memory-bound ones in GB/s and as a part of what a copy
// reaches, attention and matmul in TFLOP/s, at the shapes of two models.
//   bench_cuda [rounds]
// Medians over rounds, fewer where they take long; each timed by events around one call, with
// nothing of the round before in the L2 cache. Bytes are what a kernel must read and write once.
// What fails is told, and the rest goes on.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fp8.h"
#include "kernels/matmul.h"
#include "kernels/matmul_apart.h"
#include "kernels/norm.h"
#include "kernels/permute.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"

using namespace mtrain;
using namespace mtrain::kernels;

namespace {

struct Model {
  const char* name;
  int64_t H, F, V, A, G, D;
};
constexpr Model kModels[] = {{"1.5B", 1536, 8960, 151936, 12, 2, 128},
                             {"8B", 4096, 14336, 128256, 32, 8, 128}};
constexpr int64_t kTokens = 8192;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw RunError(cudaGetErrorString(status));
}

class Gpu {
 public:
  explicit Gpu(int rounds) : rounds_(rounds) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    keep_pool();
    constexpr size_t kFarBeyondL2 = 256 << 20;
    check(cudaMalloc(&other_, kFarBeyondL2));
    check(cudaMemset(other_, 0, kFarBeyondL2));
    check(cudaMalloc(&other_sum_, sizeof(double)));
    others_ = {.x = {other_, int64_t(kFarBeyondL2 / sizeof(float)), DType::f32},
               .out = {other_sum_, 1, DType::f64}};
  }
  CUstream_st* stream() const { return stream_; }

  // Normal numbers: what the values are changes the clocks. Freed by free_all().
  Span normal(int64_t count, DType dtype, float std = 1) {
    const Span wide = raw(count, DType::f32);
    cuda::run(FillNormal{.y = wide, .key = ++key_, .std = std}, stream_);
    if (dtype == DType::f32) return wide;
    const Span narrow = raw(count, dtype);
    cuda::run(Cast{.x = wide, .y = narrow}, stream_);
    check(cudaStreamSynchronize(stream_));
    check(cudaFree(wide.data));
    taken_.erase(std::find(taken_.begin(), taken_.end(), wide.data));
    return narrow;
  }
  Span ids(int64_t count, int64_t below) {
    std::vector<int32_t> host(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) host[size_t(i)] = int32_t(i * 7919 % below);
    return upload(host);
  }
  Span upload(const std::vector<int32_t>& host) {
    const Span s = raw(int64_t(host.size()), DType::i32);
    // In the stream's order: cudaMemcpy may return before the last bytes are there.
    check(cudaMemcpyAsync(s.data, host.data(), size_t(s.bytes()), cudaMemcpyHostToDevice, stream_));
    check(cudaStreamSynchronize(stream_));
    return s;
  }
  Span raw(int64_t count, DType dtype) {
    Span s{nullptr, count, dtype};
    check(cudaMalloc(&s.data, size_t(std::max<int64_t>(1, s.bytes()))));
    taken_.push_back(s.data);
    return s;
  }
  void free_all() {
    check(cudaStreamSynchronize(stream_));
    for (void* p : taken_) check(cudaFree(p));
    taken_.clear();
  }
  // Whether all of it could be measured.
  bool measure(const std::function<void()>& kernels) {
    try {
      kernels();
      return true;
    } catch (const std::exception& e) {
      std::printf("FAILED: %s\n", e.what());
      free_all();  // throws where nothing on this GPU works any more
      return false;
    }
  }

  double median_seconds(const std::function<void()>& call) {
    constexpr double kMostSeconds = 0.25;
    constexpr size_t kLeastRounds = 3;
    std::vector<double> seconds;
    double all = 0;
    for (int round = -3; round < rounds_; ++round) {
      if (all > kMostSeconds && seconds.size() >= kLeastRounds) break;
      // Also lets the host be ahead of the GPU: launches are not what is timed.
      cuda::run(others_, stream_);
      check(cudaEventRecord(begin_, stream_));
      call();
      check(cudaEventRecord(end_, stream_));
      check(cudaEventSynchronize(end_));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_));
      if (round < 0) continue;
      seconds.push_back(double(ms) * 1e-3);
      all += seconds.back();
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  template <class Args>
  void bandwidth(const char* name, const Args& args, double bytes) {
    const double s = median_seconds([&] { cuda::run(args, stream_); });
    std::printf("%-28s %8.1f us %8.0f GB/s  %5.1f %% of a copy\n", name, s * 1e6, bytes / s * 1e-9,
                100 * bytes / s / copy_);
  }
  template <class Args>
  void arithmetic(const char* name, const Args& args, double flops) {
    arithmetic_of(
        name, [&] { cuda::run(args, stream_); }, flops);
  }
  void arithmetic_of(const char* name, const std::function<void()>& call, double flops) {
    const double s = median_seconds(call);
    std::printf("%-28s %8.1f us %8.0f TFLOP/s\n", name, s * 1e6, flops / s * 1e-12);
  }
  void measure_copy() {
    const Span from = raw(int64_t(1) << 30, DType::u8), to = raw(int64_t(1) << 30, DType::u8);
    const double s = median_seconds([&] {
      check(cudaMemcpyAsync(to.data, from.data, size_t(from.count), cudaMemcpyDeviceToDevice,
                            stream_));
    });
    copy_ = 2 * double(from.count) / s;
    std::printf("%-28s %8.1f us %8.0f GB/s\n", "copy of 1 GiB", s * 1e6, copy_ * 1e-9);
    free_all();
  }

 private:
  // What a kernel takes for its intermediate results serves the next round.
  static void keep_pool() {
    int device = 0;
    cudaMemPool_t pool = nullptr;
    uint64_t all = UINT64_MAX;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetDefaultMemPool(&pool, device));
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
  }

  int rounds_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<void*> taken_;
  void *other_ = nullptr, *other_sum_ = nullptr;
  SumSquares others_;  // reads what nothing else does
  uint64_t key_ = 0;
  double copy_ = 1;  // bytes per second, read and written
};

void bench_norms(Gpu& gpu, const Model& m, DType t) {
  const int64_t T = kTokens, n = T * m.H;
  const double row = double(n * dtype_size(t));
  const Span x = gpu.normal(n, t), r = gpu.normal(n, t), sum = gpu.raw(n, t), y = gpu.raw(n, t);
  const Span w = gpu.normal(m.H, t), rstd = gpu.raw(T, DType::f32),
             dw = gpu.normal(m.H, DType::f32);
  gpu.bandwidth("norm and residual, forward",
                NormForward{.x_TH = x,
                            .residual_TH = r,
                            .sum_TH = sum,
                            .w_H = w,
                            .y_TH = y,
                            .rstd_T = rstd,
                            .T = T,
                            .H = m.H},
                4 * row);
  gpu.bandwidth("norm, forward",
                NormForward{.x_TH = x, .w_H = w, .y_TH = y, .rstd_T = rstd, .T = T, .H = m.H},
                2 * row);
  gpu.bandwidth("norm, backward",
                NormBackward{.dy_TH = r,
                             .x_TH = x,
                             .w_H = w,
                             .rstd_T = rstd,
                             .dresidual_TH = sum,
                             .dx_TH = y,
                             .dw_H = dw,
                             .T = T,
                             .H = m.H},
                4 * row);
  gpu.bandwidth("add", Add{.a = x, .b = r, .y = y}, 3 * row);
  gpu.bandwidth("dropout", Dropout{.x = x, .y = y, .key = 1, .p = 0.1f}, 2 * row);
  gpu.bandwidth("column sum", ColumnSum{.x_TN = x, .out_N = dw, .T = T, .N = m.H}, row);
  const Span id = gpu.ids(T, m.V), table = gpu.normal(m.V * m.H, t),
             grad = gpu.normal(m.V * m.H, DType::f32);
  gpu.bandwidth(
      "embedding, forward",
      EmbeddingForward{.id_T = id, .table_VH = table, .out_TH = y, .T = T, .H = m.H, .V = m.V},
      2 * row);
  gpu.bandwidth(
      "embedding, backward",
      EmbeddingBackward{.id_T = id, .dout_TH = x, .dtable_VH = grad, .T = T, .H = m.H, .V = m.V},
      row + 8.0 * double(n));
  gpu.free_all();
}

void bench_mlp(Gpu& gpu, const Model& m, DType t) {
  const int64_t T = kTokens, n = T * m.F;
  const double row = double(n * dtype_size(t));
  const Span gate_up = gpu.normal(2 * n, t), y = gpu.normal(n, t), d = gpu.raw(2 * n, t);
  gpu.bandwidth("swiglu, forward", SwigluForward{gate_up, y, T, m.F}, 3 * row);
  // As the model has it: the activation takes its gradient's place.
  gpu.bandwidth("swiglu, backward", SwigluBackward{gate_up, y, d, y, T, m.F}, 6 * row);
  gpu.bandwidth("gelu, forward", GeluForward{gate_up, d, 2 * n}, 4 * row);
  gpu.bandwidth("gelu, backward", GeluBackward{gate_up, gate_up, d, {}, 2 * n}, 4 * row);
  gpu.free_all();
}

void bench_experts(Gpu& gpu, const Model& m, DType t) {
  constexpr int64_t kExperts = 64, kChosen = 8;
  const int64_t T = kTokens, R = T * kChosen;
  const double row = double(m.H * dtype_size(t));
  const Span expert = gpu.ids(R, kExperts), count = gpu.raw(kExperts, DType::i32),
             rows = gpu.raw(R, DType::i32), choices = gpu.raw(R, DType::i32),
             weight = gpu.normal(R, DType::f32), x = gpu.normal(T * m.H, t),
             sorted = gpu.normal(R * m.H, t);
  gpu.bandwidth("rows of experts", ExpertRows{expert, count, rows, choices, T, kChosen, kExperts},
                12 * double(R));
  gpu.bandwidth("permute", Permute{x, choices, {}, sorted, T, kChosen, R, m.H},
                row * double(R + T));
  gpu.bandwidth("unpermute", Unpermute{sorted, rows, weight, x, T, kChosen, R, m.H},
                row * double(R + T));
  gpu.bandwidth("unpermute, weights' gradient",
                UnpermuteWeightGrad{x, sorted, rows, weight, T, kChosen, R, m.H},
                row * double(R + T));
  gpu.free_all();
}

// A gradient of the widest linear's output, and an input of it.
void bench_float8(Gpu& gpu, const Model& m, DType t) {
  const int64_t T = kTokens, N = 2 * m.F, n = T * N;
  const double row = double(n * dtype_size(t)), bytes = double(n);
  const Span x = gpu.normal(n, t), y = gpu.raw(n, DType::f8e5m2),
             transposed = gpu.raw(n, DType::f8e5m2);
  const Span amax = gpu.raw(1, DType::f32), scale = gpu.raw(1, DType::f32),
             inverse = gpu.raw(1, DType::f32);
  gpu.bandwidth("amax and its scale", Amax{x, amax, scale, inverse, DType::f8e5m2}, row);
  Quantize q{.x_TN = x, .scale = scale, .y_TN = y, .T = T, .N = N, .stride = T};
  gpu.bandwidth("to 8 bits", q, row + bytes);
  q.y_NT = transposed;
  gpu.bandwidth("to 8 bits and transpose", q, row + 2 * bytes);
  q.amax = amax;
  gpu.bandwidth("the same, recording amax", q, row + 2 * bytes);
  q.amax = {}, q.y_TN = {};
  gpu.bandwidth("transpose to 8 bits", q, row + bytes);
  gpu.free_all();
}

void bench_loss(Gpu& gpu, const Model& m, DType t) {
  const int64_t T = kTokens / 2;
  const Span logits = gpu.normal(T * m.V, t), label = gpu.ids(T, m.V),
             loss = gpu.raw(T, DType::f32);
  gpu.bandwidth("cross entropy and gradient",
                CrossEntropy{.logits_TV = logits,
                             .label_T = label,
                             .loss_T = loss,
                             .T = T,
                             .V = m.V,
                             .row_stride = m.V,
                             .grad_scale = 1e-4f},
                2.0 * double(logits.bytes()));
  gpu.free_all();
}

void bench_optimizer(Gpu& gpu) {
  const int64_t n = int64_t(1) << 28;
  const DType f = DType::f32;
  const Span w = gpu.normal(n, f), m = gpu.normal(n, f), v = gpu.raw(n, f), g = gpu.normal(n, f);
  cuda::run(Fill{.y = v, .value = 1}, gpu.stream());
  const Span p = gpu.raw(n, DType::bf16), total = gpu.raw(1, DType::f64), one = gpu.raw(1, f);
  cuda::run(Fill{.y = one, .value = 1}, gpu.stream());
  gpu.bandwidth("adamw",
                AdamW{.master = w,
                      .m = m,
                      .v = v,
                      .grad = g,
                      .param = p,
                      .grad_scale = one,
                      .lr = 1e-4f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .step = 5},
                30.0 * double(n));
  gpu.bandwidth("adamw without master",
                AdamW{.m = m,
                      .v = v,
                      .grad = g,
                      .param = p,
                      .grad_scale = one,
                      .lr = 1e-4f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .step = 5,
                      .rounding = {.random = true, .key = 1}},
                24.0 * double(n));
  gpu.bandwidth("sum of squares", SumSquares{.x = g, .out = total}, 4.0 * double(n));
  gpu.bandwidth("cast fp32 to bf16", Cast{.x = g, .y = p}, 6.0 * double(n));
  gpu.bandwidth("fill", Fill{.y = g, .value = 1}, 4.0 * double(n));
  gpu.free_all();
}

// Sequences of S tokens each; or `packed` into one, as documents of that length.
void bench_attention(Gpu& gpu, const Model& m, DType t, int64_t S, bool packed) {
  const int64_t B = kTokens / S, N = (m.A + 2 * m.G) * m.D, AD = m.A * m.D;
  const Span qkv = gpu.normal(kTokens * N, t), out = gpu.raw(kTokens * AD, t),
             dout = gpu.normal(kTokens * AD, t);
  const Span dqkv = gpu.raw(kTokens * N, t), lse = gpu.raw(B * m.A * S, DType::f32);
  const auto from = [&](const Span& s, int64_t head) {
    return Span{s.as<char>() + head * m.D * dtype_size(t), s.count - head * m.D, t};
  };
  AttentionShape shape{
      .B = B, .Sq = S, .Skv = S, .A = m.A, .G = m.G, .D = m.D, .scale = 1 / std::sqrt(float(m.D))};
  if (packed) {
    std::vector<int32_t> rows;
    for (int64_t b = 0; b <= B; ++b) rows.push_back(int32_t(b * S));
    const Span borders = gpu.upload(rows);
    shape.B = 1, shape.Sq = shape.Skv = kTokens;
    shape.q_documents = {{borders.data, B, DType::i32}, {borders.as<int32_t>() + 1, B, DType::i32}};
    shape.kv_documents = shape.q_documents;
  }
  const HeadView q{from(qkv, 0), N}, k{from(qkv, m.A), N}, v{from(qkv, m.A + m.G), N};
  // Two products over the half of the scores that a causal mask leaves.
  const double flops = 2 * 2.0 * double(B * m.A * S * S * m.D) / 2;
  char name[64];
  const char* const how = packed ? ", packed" : "";
  std::snprintf(name, sizeof name, "attention S %d%s, forward", int(S), how);
  gpu.arithmetic(
      name, AttentionForward{.shape = shape, .q = q, .k = k, .v = v, .out = {out, AD}, .lse = lse},
      flops);
  std::snprintf(name, sizeof name, "attention S %d%s, backward", int(S), how);
  gpu.arithmetic(name,
                 AttentionBackward{.shape = shape,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .out = {out, AD},
                                   .dout = {dout, AD},
                                   .lse = lse,
                                   .dq = {from(dqkv, 0), N},
                                   .dk = {from(dqkv, m.A), N},
                                   .dv = {from(dqkv, m.A + m.G), N}},
                 2.5 * flops);
  if (packed) return gpu.free_all();
  const Span cos = gpu.normal(S * m.D / 2, DType::f32), sin = gpu.normal(S * m.D / 2, DType::f32),
             position = gpu.ids(kTokens, S);
  gpu.bandwidth("rope",
                Rope{.x = qkv,
                     .cos_PR = cos,
                     .sin_PR = sin,
                     .position_T = position,
                     .T = kTokens,
                     .heads = m.A + m.G,
                     .D = m.D,
                     .token_stride = N},
                2.0 * double(kTokens * (m.A + m.G) * m.D * dtype_size(t)));
  gpu.free_all();
}

void bench_matmul(Gpu& gpu, const Model& m, DType t) {
  const struct {
    const char* name;
    int64_t N, K;
  } layers[] = {{"qkv", (m.A + 2 * m.G) * m.D, m.H},
                {"out", m.H, m.A * m.D},
                {"up", 2 * m.F, m.H},
                {"down", m.H, m.F}};
  for (const auto& l : layers) {
    const int64_t T = kTokens;
    const Span x = gpu.normal(T * l.K, t), w = gpu.normal(l.N * l.K, t), y = gpu.normal(T * l.N, t);
    const Span dw = gpu.normal(l.N * l.K, DType::f32), dx = gpu.raw(T * l.K, t);
    const double flops = 2.0 * double(T) * double(l.N) * double(l.K);
    char name[64];
    std::snprintf(name, sizeof name, "%s, forward", l.name);
    gpu.arithmetic(name,
                   Matmul{.a = x, .b = w, .c_MN = y, .M = T, .N = l.N, .K = l.K, .trans_b = true},
                   flops);
    std::snprintf(name, sizeof name, "%s, of the input", l.name);
    gpu.arithmetic(name, Matmul{.a = y, .b = w, .c_MN = dx, .M = T, .N = l.K, .K = l.N}, flops);
    std::snprintf(name, sizeof name, "%s, of the weight", l.name);
    gpu.arithmetic(name,
                   Matmul{.a = y,
                          .b = x,
                          .c_MN = dw,
                          .M = l.N,
                          .N = l.K,
                          .K = T,
                          .trans_a = true,
                          .accumulate = true},
                   flops);
    gpu.free_all();
  }
}

// What cuBLASLt computes beside a product in bf16, against kernels one after another.
void bench_epilogues(Gpu& gpu, const Model& m) {
  const DType t = DType::bf16;
  const int64_t T = kTokens, F = m.F;
  const Span x = gpu.normal(T * m.H, t), w = gpu.normal(F * m.H, t, 0.02f), y = gpu.raw(T * F, t),
             up = gpu.normal(T * F, t), dw = gpu.normal(F * m.H, DType::f32),
             db = gpu.normal(F, DType::f32);
  const double flops = 2.0 * double(T) * double(F) * double(m.H);
  const auto both = [&](const std::string& name, const Matmul& product) {
    gpu.arithmetic(name.c_str(), product, flops);
    gpu.arithmetic_of(
        (name + ", apart").c_str(),
        [&] { run_apart(product, [&](const auto& args) { cuda::run(args, gpu.stream()); }); },
        flops);
  };
  const Matmul forward{.a = x, .b = w, .c_MN = y, .M = T, .N = F, .K = m.H, .trans_b = true};
  Matmul gelu = forward, dgelu = forward;
  gelu.gelu_input_MN = up, dgelu.dgelu_of_MN = up;
  both("up, with gelu", gelu);
  both("up, with gelu's gradient", dgelu);
  Matmul sums{.a = up, .b = x, .c_MN = dw, .M = F, .N = m.H, .K = T, .trans_a = true};
  sums.accumulate = true, sums.a_sums_M = db;
  both("weight, with the bias", sums);
  gpu.free_all();
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whoever ends it has what was measured
  bool good = true;
  try {
    Gpu gpu(argc > 1 ? std::max(1, std::atoi(argv[1])) : 20);
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s\n", properties.name);
    gpu.measure_copy();
    good &= gpu.measure([&] { bench_optimizer(gpu); });
    for (DType t : {DType::bf16, DType::f32})
      for (const Model& m : kModels) {
        std::printf("--- %s, %s, %d tokens\n", m.name, std::string(dtype_name(t)).c_str(),
                    int(kTokens));
        good &= gpu.measure([&] { bench_norms(gpu, m, t); });
        good &= gpu.measure([&] { bench_mlp(gpu, m, t); });
        good &= gpu.measure([&] { bench_experts(gpu, m, t); });
        good &= gpu.measure([&] { bench_float8(gpu, m, t); });
        good &= gpu.measure([&] { bench_loss(gpu, m, t); });
        for (int64_t S : {1024, 4096})
          for (bool packed : {false, true})
            good &= gpu.measure([&] { bench_attention(gpu, m, t, S, packed); });
        good &= gpu.measure([&] { bench_matmul(gpu, m, t); });
        if (t == DType::bf16) good &= gpu.measure([&] { bench_epilogues(gpu, m); });
      }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_cuda: %s\n", e.what());
    return 1;
  }
  return good ? 0 : 1;
}
