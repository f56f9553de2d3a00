// Measures the CUDA kernels on this GPU at the shapes of two models: memory-bound kernels in GB/s
// and relative to a copy, attention and GEMMs in TFLOP/s; and the GEMMs of experts.
//   bench_cuda [rounds, default 20] [bf16|fp32|experts, default all]
// Bytes are those that a kernel must read and write once. A kernel that fails is reported, and the
// others are still measured.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda_bench.h"

using namespace mtrain;
using namespace mtrain::kernels;

namespace {

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
  // As in the model, the gradient's buffer holds the activation afterwards.
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

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines are kept if the program is ended
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
        if (argc > 2 && dtype_name(t) != argv[2]) continue;
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
        if (t != DType::bf16) continue;
        good &= gpu.measure([&] { bench_epilogues(gpu, m); });
        const int capability = 10 * properties.major + properties.minor;
        good &= gpu.measure([&] { bench_float8_gemms(gpu, m, capability); });
      }
    if (argc <= 2 || argv[2] == std::string("experts")) {
      std::printf("--- experts of Qwen3-30B-A3B, bf16 and 8 bits, %d tokens\n", int(kTokens));
      good &= gpu.measure([&] { bench_grouped_gemms(gpu); });
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_cuda: %s\n", e.what());
    return 1;
  }
  return good ? 0 : 1;
}
