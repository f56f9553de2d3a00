// Measures how close the memory-bound CPU kernels come to the speed of memory: prints for each
// kernel the bytes per second that it must read and write, and those of a memcpy of as many bytes.
//   bench_kernels [threads] [name]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/permute.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"

using namespace mtrain;
using namespace mtrain::kernels;

namespace {

struct Buffer {
  std::vector<char> bytes;
  int64_t count;
  DType dtype;
  Buffer(DType type, int64_t elements)
      : bytes(size_t(elements * dtype_size(type))), count(elements), dtype(type) {}
  operator Span() { return {bytes.data(), count, dtype}; }
  operator ConstSpan() const { return {bytes.data(), count, dtype}; }
  // A thousand normal numbers, repeated.
  static Buffer normal(DType dtype, int64_t count) {
    Buffer b(dtype, count);
    float few[1009];
    fill_normal(1, 0, 1009, 1.0f, few);
    with_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i)
        reinterpret_cast<T*>(b.bytes.data())[i] = T(few[i % 1009]);
    });
    return b;
  }
};

double seconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Medians of runs that take turns, so that both see the same noise.
struct Pair {
  double kernel, copy;
};
Pair measure(const std::function<void()>& kernel, int64_t bytes) {
  std::vector<char> from(size_t(bytes / 2), 1), to(size_t(bytes / 2));
  const auto copy = [&] {
    parallel_for(bytes / 2, 1 << 18,
                 [&](int64_t a, int64_t b) { std::memcpy(&to[a], &from[a], size_t(b - a)); });
  };
  std::vector<double> k, c;
  kernel(), copy();
  for (double spent = 0; spent < 0.4 || k.size() < 9;) {
    k.push_back(seconds(kernel));
    c.push_back(seconds(copy));
    spent += k.back() + c.back();
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
  };
  return {median(k), median(c)};
}

struct Bench {
  std::string only;
  void operator()(const char* name, DType dtype, int64_t bytes,
                  const std::function<void()>& fn) const {
    if (std::string(name).find(only) == std::string::npos) return;
    const Pair t = measure(fn, bytes);
    std::printf("%-26s %-5s %7.1f MB %8.3f ms %7.1f GB/s   memcpy %6.1f GB/s   %4.0f %%\n", name,
                std::string(dtype_name(dtype)).c_str(), double(bytes) / 1e6, t.kernel * 1e3,
                double(bytes) / t.kernel / 1e9, double(bytes) / t.copy / 1e9,
                100 * t.copy / t.kernel);
  }
};

// T tokens, H hidden, F ffn width, V vocabulary: one micro-batch of a small model.
constexpr int64_t T = 2048, H = 1024, F = 2816, V = 50304, kVocabTokens = 256;

void bench_norms(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer x = Buffer::normal(d, T * H), dy = x, y(d, T * H), dx(d, T * H), sum(d, T * H),
         w = Buffer::normal(d, H), b = w;
  Buffer rstd = Buffer::normal(DType::f32, T), mean = rstd, dw(DType::f32, H), db(DType::f32, H);
  for (NormKind kind : {NormKind::rms, NormKind::layer}) {
    const bool rms = kind == NormKind::rms;
    NormForward f{.kind = kind, .x_TH = x, .w_H = w, .y_TH = y, .rstd_T = rstd, .T = T, .H = H};
    NormBackward g{.kind = kind,
                   .dy_TH = dy,
                   .x_TH = x,
                   .w_H = w,
                   .rstd_T = rstd,
                   .dx_TH = dx,
                   .dw_H = dw,
                   .T = T,
                   .H = H};
    if (!rms) f.b_H = b, f.mean_T = mean, g.mean_T = mean, g.db_H = db;
    bench(rms ? "rms norm" : "layer norm", d, 2 * T * H * size, [&] { cpu::run(f); });
    bench(rms ? "rms norm backward" : "layer norm backward", d, 3 * T * H * size,
          [&] { cpu::run(g); });
    f.residual_TH = dy, f.sum_TH = sum;
    bench(rms ? "rms norm + residual" : "layer norm + residual", d, 4 * T * H * size,
          [&] { cpu::run(f); });
  }
}

void bench_pointwise(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer x = Buffer::normal(d, T * H), dy = x, y(d, T * H), dx(d, T * H);
  Buffer cos = Buffer::normal(DType::f32, T * 32), position(DType::i32, T);
  for (int64_t t = 0; t < T; ++t) reinterpret_cast<int32_t*>(position.bytes.data())[t] = int32_t(t);
  bench("rope", d, 2 * T * H * size, [&] {
    cpu::run(Rope{.x = x,
                  .cos_PR = cos,
                  .sin_PR = cos,
                  .position_T = position,
                  .T = T,
                  .heads = H / 64,
                  .D = 64,
                  .R = 32,
                  .token_stride = H});
  });
  bench("add", d, 3 * T * H * size, [&] { cpu::run(Add{.a = x, .b = dy, .y = y}); });
  bench("dropout", d, 2 * T * H * size,
        [&] { cpu::run(Dropout{.x = x, .y = y, .key = 1, .p = 0.1f}); });
  bench("gelu tanh", d, 2 * T * H * size,
        [&] { cpu::run(GeluForward{.x = x, .y = y, .count = T * H}); });
  bench("gelu tanh backward", d, 3 * T * H * size,
        [&] { cpu::run(GeluBackward{.x = x, .dy = dy, .dx = dx, .count = T * H}); });
  bench("gelu erf backward", d, 3 * T * H * size,
        [&] { cpu::run(GeluBackward{.x = x, .dy = dy, .dx = dx, .count = T * H, .tanh = false}); });
}

void bench_reductions(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer x = Buffer::normal(d, T * H), dw(DType::f32, H);
  bench("column sum", d, T * H * size,
        [&] { cpu::run(ColumnSum{.x_TN = x, .out_N = dw, .T = T, .N = H}); });
  Buffer f64(DType::f64, 1), i64(DType::i64, 1),
      other(d == DType::f32 ? DType::bf16 : DType::f32, T * H);
  bench("sum of squares", d, T * H * size, [&] { cpu::run(SumSquares{.x = x, .out = f64}); });
  bench("first non-finite", d, T * H * size, [&] { cpu::run(FirstNonFinite{.x = x, .out = i64}); });
  bench("cast to the other type", d, T * H * 6, [&] { cpu::run(Cast{.x = x, .y = other}); });
}

void bench_embedding(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer y(d, T * H), dy = Buffer::normal(d, T * H);
  Buffer id(DType::i32, T), table = Buffer::normal(d, V * H), dtable(DType::f32, V * H);
  for (int64_t t = 0; t < T; ++t)
    reinterpret_cast<int32_t*>(id.bytes.data())[t] = int32_t(uniform_below(1, t, V));
  bench("embedding", d, 2 * T * H * size, [&] {
    cpu::run(EmbeddingForward{.id_T = id, .table_VH = table, .out_TH = y, .T = T, .H = H, .V = V});
  });
  bench("embedding backward", d, T * H * (size + 8), [&] {
    cpu::run(
        EmbeddingBackward{.id_T = id, .dout_TH = dy, .dtable_VH = dtable, .T = T, .H = H, .V = V});
  });
}

void bench_experts(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer x = Buffer::normal(d, T * H), dy = x, y(d, T * H);
  constexpr int64_t kExperts = 16, kChosen = 2;
  const int64_t R = T * kChosen;
  Buffer expert(DType::i32, R), count(DType::i32, kExperts), row(DType::i32, R),
      choice(DType::i32, R), weight = Buffer::normal(DType::f32, R), rows(d, R * H);
  for (int64_t i = 0; i < R; ++i)
    reinterpret_cast<int32_t*>(expert.bytes.data())[i] = int32_t(uniform_below(2, i, kExperts));
  bench("rows of experts", d, R * 16, [&] {
    cpu::run(ExpertRows{expert, count, row, choice, T, kChosen, kExperts});
  });
  bench("permute", d, 2 * R * H * size, [&] {
    cpu::run(Permute{x, choice, {}, rows, T, kChosen, R, H});
  });
  bench("unpermute", d, (R + T) * H * size, [&] {
    cpu::run(Unpermute{rows, row, weight, y, T, kChosen, R, H});
  });
  bench("unpermute's weights", d, 2 * R * H * size, [&] {
    cpu::run(UnpermuteWeightGrad{dy, rows, row, weight, T, kChosen, R, H});
  });
}

void bench_swiglu(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer gate_up = Buffer::normal(d, T * 2 * F), dy = Buffer::normal(d, T * F), y = dy,
         dgate_up = gate_up;
  bench("swiglu", d, 3 * T * F * size,
        [&] { cpu::run(SwigluForward{.gate_up_T2F = gate_up, .y_TF = y, .T = T, .F = F}); });
  bench("swiglu backward", d, 5 * T * F * size, [&] {
    cpu::run(SwigluBackward{
        .gate_up_T2F = gate_up, .dy_TF = dy, .dgate_up_T2F = dgate_up, .T = T, .F = F});
  });
}

void bench_cross_entropy(const Bench& bench, DType d) {
  const int64_t size = dtype_size(d);
  Buffer logits = Buffer::normal(d, kVocabTokens * V), label(DType::i32, kVocabTokens),
         loss(DType::f32, kVocabTokens);
  CrossEntropy a{.logits_TV = logits,
                 .label_T = label,
                 .loss_T = loss,
                 .T = kVocabTokens,
                 .V = V,
                 .row_stride = V};
  bench("cross entropy", d, 2 * kVocabTokens * V * size, [&] { cpu::run(a); });
  a.write_grad = false;
  bench("cross entropy, loss only", d, kVocabTokens * V * size, [&] { cpu::run(a); });
}

}  // namespace

int main(int argc, char** argv) {
  ThreadPool pool(argc > 1 ? std::max(1, std::atoi(argv[1])) : 1);
  ThreadPool::Scope scope(&pool);
  const Bench bench{argc > 2 ? argv[2] : ""};
  std::printf("%d threads, %s\n", pool.threads(), cpu::isa_name(cpu::isa()));
  for (DType d : {DType::f32, DType::bf16})
    for (const auto part : {bench_norms, bench_pointwise, bench_reductions, bench_embedding,
                            bench_experts, bench_swiglu, bench_cross_entropy})
      part(bench, d);
  const int64_t n = 8 << 20;
  Buffer master = Buffer::normal(DType::f32, n), grad = master, m(DType::f32, n), v(DType::f32, n),
         param(DType::bf16, n);
  bench("adamw", DType::f32, n * 28, [&] {
    cpu::run(AdamW{.master = master,
                   .m = m,
                   .v = v,
                   .grad = grad,
                   .lr = 1e-3f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .step = 10});
  });
  bench("adamw with bf16 copy", DType::f32, n * 30, [&] {
    cpu::run(AdamW{.master = master,
                   .m = m,
                   .v = v,
                   .grad = grad,
                   .param = param,
                   .lr = 1e-3f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .step = 10});
  });
}
