// Measures attention and GEMMs for bench_cuda, in TFLOP/s.
#include <cmath>
#include <string>

#include <fmt/core.h>

#include "cuda_bench.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/grouped/grouped_engine.h"

namespace mtrain::kernels {

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
  // Two GEMMs over the half of the scores that a causal mask leaves.
  const double flops = 2 * 2.0 * double(B * m.A * S * S * m.D) / 2;
  const std::string name = fmt::format("attention S {}{}, ", S, packed ? ", packed" : "");
  const AttentionForward forward{
      .shape = shape, .q = q, .k = k, .v = v, .out = {out, AD}, .lse = lse};
  gpu.arithmetic(name + "forward", forward, flops, [&] { return cuda::attention_engine(forward); });
  AttentionBackward backward{.shape = shape,
                             .q = q,
                             .k = k,
                             .v = v,
                             .out = {out, AD},
                             .dout = {dout, AD},
                             .lse = lse,
                             .dq = {from(dqkv, 0), N},
                             .dk = {from(dqkv, m.A), N},
                             .dv = {from(dqkv, m.A + m.G), N}};
  // Without the fixed order of debug.deterministic, as in most trainings.
  for (const bool fixed : {false, true}) {
    backward.fixed_order = fixed;
    gpu.arithmetic(name + "backward" + (fixed ? ", fixed order" : ""), backward, 2.5 * flops,
                   [&] { return cuda::attention_engine(backward); });
  }
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
                     .R = m.D / 2,
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
    const std::string name = l.name;
    gpu.gemm(name + ", forward",
             {.a = x, .b = w, .c_MN = y, .M = T, .N = l.N, .K = l.K, .trans_b = true}, flops);
    gpu.gemm(name + ", of the input", {.a = y, .b = w, .c_MN = dx, .M = T, .N = l.K, .K = l.N},
             flops);
    gpu.gemm(name + ", of the weight",
             {.a = y,
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

// Compares the bf16 epilogues of cuBLASLt with separate kernels.
void bench_epilogues(Gpu& gpu, const Model& m) {
  const DType t = DType::bf16;
  const int64_t T = kTokens, F = m.F;
  const Span x = gpu.normal(T * m.H, t), w = gpu.normal(F * m.H, t, 0.02f), y = gpu.raw(T * F, t),
             up = gpu.normal(T * F, t), dw = gpu.normal(F * m.H, DType::f32),
             db = gpu.normal(F, DType::f32);
  const double flops = 2.0 * double(T) * double(F) * double(m.H);
  const auto both = [&](const std::string& name, const Matmul& product) {
    gpu.gemm(name, product, flops);
    gpu.arithmetic_of(
        name + ", apart",
        [&] { run_unfused(product, [&](const auto& args) { cuda::run(args, gpu.stream()); }); },
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

namespace {

// Measures both engines of one GEMM. A refusal of CUTLASS is printed as its line.
template <class Args>
void bench_engines(Gpu& gpu, const std::string& name, const Args& args, double flops) {
  gpu.arithmetic_of(
      name, [&] { cuda::own_grouped_gemm(args, gpu.stream()); }, flops);
  if (const std::string why = cuda::cutlass_grouped_gemm(args, gpu.stream()); !why.empty()) {
    std::printf("%-28s %s\n", (name + ", CUTLASS").c_str(), why.c_str());
    return;
  }
  gpu.arithmetic_of(
      name + ", CUTLASS", [&] { (void)cuda::cutlass_grouped_gemm(args, gpu.stream()); }, flops);
}

}  // namespace

// Each expert gets between half and one and a half of an equal share of the tokens, in no order.
void bench_grouped_gemms(Gpu& gpu) {
  constexpr int64_t H = 2048, F = 768, E = 128, R = kTokens * 8;
  std::vector<int32_t> rows{0};
  for (int64_t e = 0; e < E; ++e)
    rows.push_back(e + 1 == E ? int32_t(R)
                              : rows.back() + int32_t(R / E + (e * 37 % 64 - 32) * R / E / 64));
  const Span first = gpu.upload(rows), one = gpu.filled(1, 1);
  struct {
    const char* name;
    int64_t out, in;
  } const layers[] = {{"gate_up", 2 * F, H}, {"down", H, F}};
  for (const bool float8 : {false, true})
    for (const auto& l : layers) {
      const auto make = [&](int64_t count, DType type) {
        return float8 ? gpu.float8(count, type) : gpu.normal(count, DType::bf16);
      };
      const double flops = 2.0 * double(R) * double(l.out) * double(l.in);
      const std::string name = fmt::format("{}{}, ", l.name, float8 ? " 8 bits" : "");
      const Span x = make(R * l.in, DType::f8e4m3), w = make(E * l.out * l.in, DType::f8e4m3),
                 dy = make(R * l.out, DType::f8e5m2), y = gpu.raw(R * l.out, DType::bf16),
                 dx = gpu.raw(R * l.in, DType::bf16);
      const ConstSpan inverse = float8 ? ConstSpan(one) : ConstSpan();
      GroupedMatmul forward{.a_RK = x, .b_EKN = w, .first_E1 = first, .c_RN = y};
      forward.R = R, forward.N = l.out, forward.K = l.in, forward.E = E, forward.trans_b = true;
      forward.a_inverse = forward.b_inverse = inverse;
      bench_engines(gpu, name + "forward", forward, flops);
      GroupedMatmul dgrad = forward;
      dgrad.a_RK = dy, dgrad.c_RN = dx, dgrad.N = l.in, dgrad.K = l.out, dgrad.trans_b = false;
      bench_engines(gpu, name + "of the input", dgrad, flops);
      const Span dw = gpu.normal(E * l.out * l.in, DType::f32);
      bench_engines(gpu, name + "of the weight",
                    GroupedWeightGrad{.a_RM = dy,
                                      .b_RN = x,
                                      .first_E1 = first,
                                      .c_EMN = dw,
                                      .R = R,
                                      .M = l.out,
                                      .N = l.in,
                                      .E = E,
                                      .accumulate = true,
                                      .a_inverse = inverse,
                                      .b_inverse = inverse},
                    flops);
      gpu.free_but({first.data, one.data});
    }
  gpu.free_all();
}

}  // namespace mtrain::kernels
