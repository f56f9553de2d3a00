// These tests need a GPU: cuBLASLt has no stand-in on the CPU that would prove anything.
#include <cmath>
#include <memory>

#include <cuda_runtime_api.h>

#include "kernels/fp8_blocks.h"
#include "kernels/matmul.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

TEST_CASE("matmul equals the CPU's: transposes, types, bias, accumulation, odd sizes") {
  for (DType ta : kFloats)
    for (DType tb : kFloats)
      for (DType tc : kFloats) {
        if (!can_meet(ta, tb, tc)) continue;
        Closeness close("matmul " + std::string(dtype_name(ta)) + " " +
                        std::string(dtype_name(tb)) + " to " + std::string(dtype_name(tc)));
        for (auto [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                               {7, 5, 3},
                               {64, 96, 128},
                               {33, 65, 129},
                               {256, 40, 1000},
                               {4, 8, 0}})
          for (bool trans_a : {false, true})
            for (bool trans_b : {false, true})
              for (int extra : {0, 1, 2})  // nothing, a bias, accumulation
                for (int64_t offset : {0, 1}) {
                  if (extra == 2 && tc != DType::f32) continue;
                  CAPTURE(M, N, K, trans_a, trans_b, extra, offset);
                  Mirror a(Array::normal(ta, M * K, 1), offset),
                      b(Array::normal(tb, K * N, 2), offset);
                  Mirror bias(Array::normal(ta, N, 3), offset),
                      c(Array::normal(tc, M * N, 4), offset);
                  const auto args = [&](auto&& of) {
                    Matmul m{.a = of(a),
                             .b = of(b),
                             .c_MN = of(c),
                             .M = M,
                             .N = N,
                             .K = K,
                             .trans_a = trans_a,
                             .trans_b = trans_b,
                             .accumulate = extra == 2};
                    if (extra == 1) m.bias_N = of(bias);
                    return m;
                  };
                  cpu::run(args([](Mirror& x) { return x.host().span(); }));
                  cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
                  const Rule rule{.dtype = tc,
                                  .K = double(K + 1),
                                  .scale = 4 * std::sqrt(double(K + 1)),
                                  .sums = DType::f32};
                  REQUIRE(c.compare(close, rule) == "");
                }
      }
}

TEST_CASE("products of 8 bits equal the CPU's: types, bias, accumulation, sums fast and exact") {
  for (auto [ta, tb] : {std::pair{DType::f8e4m3, DType::f8e4m3},
                        {DType::f8e5m2, DType::f8e4m3},
                        {DType::f8e4m3, DType::f8e5m2}})
    for (DType tc : kFloats) {
      Closeness close("matmul " + std::string(dtype_name(ta)) + " " + std::string(dtype_name(tb)) +
                      " to " + std::string(dtype_name(tc)));
      for (auto [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{1, 16, 16},
                             {33, 64, 128},
                             {256, 48, 1008},
                             {128, 256, 512}})
        for (int extra : {0, 1, 2})  // nothing, a bias, accumulation
          for (bool fast : {false, true}) {
            if (extra == 2 && tc != DType::f32) continue;
            CAPTURE(M, N, K, extra, fast);
            Mirror a(Array::normal(ta, M * K, 1)), b(Array::normal(tb, K * N, 2));
            Mirror bias(Array::normal(DType::bf16, N, 3)), c(Array::normal(tc, M * N, 4));
            Mirror a_inverse(Array::one(DType::f32, 0.3)), b_inverse(Array::one(DType::f32, 2));
            const auto args = [&, M = M, N = N, K = K](auto&& of) {
              Matmul m{.a = of(a),
                       .b = of(b),
                       .c_MN = of(c),
                       .M = M,
                       .N = N,
                       .K = K,
                       .trans_b = true,
                       .accumulate = extra == 2};
              m.a_inverse = of(a_inverse), m.b_inverse = of(b_inverse), m.fast = fast;
              if (extra == 1) m.bias_N = of(bias);
              return m;
            };
            cpu::run(args([](Mirror& x) { return x.host().span(); }));
            cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
            // Tensor cores align the products of a step to about 13 bits of fraction before they
            // add them: relative to the largest product, 2^-12 at worst. Fast sums always stay at
            // that precision; the others are promoted to fp32 every 128 products.
            const double lost = 0x1p-12 * (fast ? std::sqrt(double(K)) : 4);
            const double size = 4 * std::sqrt(double(K + 1)), units = std::pow(2, 23);
            const Rule rule{.dtype = tc,
                            .K = double(K + 1),
                            .scale = size + lost * units * 4 / std::sqrt(double(K + 1)),
                            .sums = DType::f32};
            REQUIRE(c.compare(close, rule) == "");
          }
    }
}

namespace {
int compute_capability() {
  int device = 0, major = 0;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess);
  return major;
}

// The (R, K) matrix in 8 bits, quantized by the CPU.
struct Blocked {
  Blocked(DType type, ScaleBlocks blocks, int64_t R, int64_t K, uint64_t key) {
    const Array x = Array::normal(DType::bf16, R * K, key);
    Array bits(type, R * K), scales(block_scale_type(blocks), block_scales(blocks, R, K));
    cpu::run(QuantizeBlocks{
        .x_TN = x, .blocks = blocks, .y_TN = bits, .inverse_TN = scales, .T = R, .N = K});
    y = std::make_unique<Mirror>(bits), inverse = std::make_unique<Mirror>(scales);
  }
  std::unique_ptr<Mirror> y, inverse;
};
}  // namespace

TEST_CASE("products of 8 bits under scales of blocks equal the CPU's where the GPU has them") {
  using Pair = std::pair<ScaleBlocks, ScaleBlocks>;
  const int capability = compute_capability();
  std::vector<Pair> pairs;
  if (capability == 9)
    pairs = {{ScaleBlocks::rows_128, ScaleBlocks::square_128},
             {ScaleBlocks::rows_128, ScaleBlocks::rows_128}};
  if (capability >= 10) pairs = {{ScaleBlocks::rows_32, ScaleBlocks::rows_32}};
  for (auto [of_a, of_b] : pairs)
    for (DType ta : {DType::f8e4m3, DType::f8e5m2})
      for (auto [M, N, K] :
           {std::tuple<int64_t, int64_t, int64_t>{4, 128, 128}, {132, 256, 640}, {256, 384, 1024}})
        for (int extra : {0, 1, 2}) {  // nothing, a bias, accumulation
          CAPTURE(int(of_a), int(of_b), ta, M, N, K, extra);
          const DType tc = extra == 2 ? DType::f32 : DType::bf16;
          const Blocked a(ta, of_a, M, K, 1), b(DType::f8e4m3, of_b, N, K, 2);
          Mirror bias(Array::normal(DType::bf16, N, 3)), c(Array::normal(tc, M * N, 4));
          const auto args = [&, M = M, N = N, K = K, of_a = of_a, of_b = of_b](auto&& of) {
            Matmul m{.a = of(*a.y),
                     .b = of(*b.y),
                     .c_MN = of(c),
                     .M = M,
                     .N = N,
                     .K = K,
                     .trans_b = true,
                     .accumulate = extra == 2,
                     .a_inverse = of(*a.inverse),
                     .b_inverse = of(*b.inverse),
                     .a_blocks = of_a,
                     .b_blocks = of_b};
            if (extra == 1) m.bias_N = of(bias);
            return m;
          };
          cpu::run(args([](Mirror& x) { return x.host().span(); }));
          cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
          Closeness close("matmul under scales of blocks");
          const double size = 4 * std::sqrt(double(K + 1));
          const Rule rule{.dtype = tc,
                          .K = double(K + 1),
                          .scale = size + 0x1p-10 * std::pow(2, 23) * 4 / std::sqrt(double(K + 1)),
                          .sums = DType::f32};
          REQUIRE(c.compare(close, rule) == "");
        }
}

TEST_CASE("epilogues of a GEMM equal the CPU's: gelu, its gradient, sums") {
  Closeness close("matmul epilogues");
  enum class Beside { gelu, gelu_bias, dgelu, sums };
  // By the library's epilogues, and for sizes that these do not support by separate kernels.
  for (auto [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{64, 96, 128},
                         {256, 48, 1000},
                         {136, 520, 64},
                         {33, 65, 129}})
    for (Beside beside : {Beside::gelu, Beside::gelu_bias, Beside::dgelu, Beside::sums})
      for (DType t : kFloats)
        for (bool accumulate : {false, true}) {
          const bool sums = beside == Beside::sums;
          if (accumulate && !sums) continue;
          CAPTURE(M, N, K, int(beside), dtype_name(t), accumulate);
          const DType tc = sums ? DType::f32 : t;
          // Of unit deviation, like the input of a gelu.
          const double small = 1 / std::sqrt(double(K));
          Mirror a(Array::normal(t, M * K, 1)), b(Array::normal(t, K * N, 2, small)),
              bias(Array::normal(t, N, 3)), c(Array::normal(tc, M * N, 4)),
              x(Array::normal(t, M * N, 5)), totals(Array::normal(DType::f32, M, 6));
          const auto args = [&, M = M, N = N, K = K](auto&& of) {
            Matmul m{.a = of(a), .b = of(b), .c_MN = of(c), .M = M, .N = N, .K = K};
            m.trans_b = !sums, m.trans_a = sums, m.accumulate = accumulate;
            if (beside == Beside::gelu_bias) m.bias_N = of(bias);
            if (beside == Beside::gelu || beside == Beside::gelu_bias) m.gelu_input_MN = of(x);
            if (beside == Beside::dgelu) m.dgelu_of_MN = of(x);
            if (sums) m.a_sums_M = of(totals);
            return m;
          };
          cpu::run(args([](Mirror& m) { return m.host().span(); }));
          cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
          const Rule product{
              .dtype = tc, .K = double(K), .scale = 4 * std::sqrt(double(K)), .sums = DType::f32};
          // The CPU rounds the GEMM's result before the epilogue, the library does not.
          const Rule rounded{.dtype = t, .K = 1, .scale = 4, .sums = t};
          REQUIRE(c.compare(close, sums || t == DType::f32 ? product : rounded) == "");
          REQUIRE(x.compare(close, product) == "");
          REQUIRE(totals.compare(close, product) == "");
        }
}
