// Measures 8-bit GEMMs for bench_cuda, in TFLOP/s: one scale for each tensor, and scales of blocks
// where the GPU has GEMMs with them.
#include <string>

#include "cuda_bench.h"

namespace mtrain::kernels {
namespace {

struct Scales {
  const char* name;
  ScaleBlocks inputs, weights;  // as a training uses them
};

// The three GEMMs of a linear (K inputs, N outputs) on T tokens, as a training computes them:
// inputs and weights are e4m3, gradients of outputs e5m2.
void bench_linear(Gpu& gpu, const std::string& name, int64_t T, int64_t N, int64_t K,
                  const Scales& s) {
  const DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;
  const auto scales = [&](ScaleBlocks blocks, int64_t rows, int64_t columns) {
    if (block_scale_type(blocks) == DType::f32)
      return gpu.filled(block_scales(blocks, rows, columns), 1);
    const Span exponents = gpu.raw(block_scales(blocks, rows, columns), block_scale_type(blocks));
    check(cudaMemsetAsync(exponents.data, 127, size_t(exponents.bytes()), gpu.stream()));  // 2^0
    return exponents;
  };
  const struct {
    const char* name;
    int64_t M, N, K;
    DType a;
    ScaleBlocks b_blocks;
    DType c;
  } gemms[] = {{"forward", T, N, K, e4m3, s.weights, DType::bf16},
               {"of the input", T, K, N, e5m2, s.weights, DType::bf16},
               {"of the weight", N, K, T, e5m2, s.inputs, DType::f32}};
  for (const auto& g : gemms) {
    const Span a = gpu.float8(g.M * g.K, g.a), b = gpu.float8(g.N * g.K, e4m3);
    const Span c = g.c == DType::f32 ? gpu.filled(g.M * g.N, 0) : gpu.raw(g.M * g.N, g.c);
    gpu.gemm(name + ", " + g.name + ", " + s.name,
             {.a = a,
              .b = b,
              .c_MN = c,
              .M = g.M,
              .N = g.N,
              .K = g.K,
              .trans_b = true,
              .accumulate = g.c == DType::f32,
              .a_inverse = scales(s.inputs, g.M, g.K),
              .b_inverse = scales(g.b_blocks, g.N, g.K),
              .a_blocks = s.inputs,
              .b_blocks = g.b_blocks,
              .fast = g.a == e4m3 && s.inputs == ScaleBlocks::none},
             2.0 * double(g.M) * double(g.N) * double(g.K));
    gpu.free_all();
  }
}

}  // namespace

void bench_float8_gemms(Gpu& gpu, const Model& m, int capability) {
  if (capability < 89) return;
  std::vector<Scales> kinds{{"fp8", ScaleBlocks::none, ScaleBlocks::none}};
  if (capability / 10 == 9)
    kinds.push_back({"fp8 blockwise", ScaleBlocks::rows_128, ScaleBlocks::square_128});
  if (capability >= 100) kinds.push_back({"mxfp8", ScaleBlocks::rows_32, ScaleBlocks::rows_32});
  for (const Scales& s : kinds) {
    bench_linear(gpu, "qkv", kTokens, (m.A + 2 * m.G) * m.D, m.H, s);
    bench_linear(gpu, "out", kTokens, m.H, m.A * m.D, s);
    bench_linear(gpu, "up", kTokens, 2 * m.F, m.H, s);
    bench_linear(gpu, "down", kTokens, m.H, m.F, s);
  }
}

}  // namespace mtrain::kernels
