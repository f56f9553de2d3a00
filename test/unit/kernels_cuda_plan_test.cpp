// Tests the calls of cuBLASLt with a stand-in that computes as the library documents: column-major
// matrices, with an operation on each operand.
#include <catch2/catch.hpp>

#include <stdexcept>

#include "kernels/cuda/cublaslt_key.h"
#include "kernels/cuda/device/dependent_launch.h"
#include "test/support/kernels_testing.h"

namespace kernels_cuda_plan_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

// Element (row, column) of op(x), where x has columns `stride` apart.
double column_major(const Array& x, int64_t stride, bool transposed, int64_t row, int64_t column) {
  return transposed ? x[row * stride + column] : x[column * stride + row];
}

// D (N, M) = op(first) op(second), column-major: first is b, second is a.
std::vector<double> library(const cuda::MatmulKey& key, const Array& a, const Array& b) {
  std::vector<double> d(size_t(key.M * key.N));
  for (int64_t column = 0; column < key.M; ++column)
    for (int64_t row = 0; row < key.N; ++row)
      for (int64_t k = 0; k < key.K; ++k)
        d[size_t(column * key.N + row)] += column_major(b, key.b_stride(), key.trans_b, row, k) *
                                           column_major(a, key.a_stride(), key.trans_a, k, column);
  return d;
}

}  // namespace

TEST_CASE("kernels start early only where their code waits and the driver captures it") {
  CHECK(cuda::can_launch_dependent(90, 13000));
  CHECK(cuda::can_launch_dependent(100, 12030));
  CHECK_FALSE(cuda::can_launch_dependent(80, 13000));  // on a new GPU too: its code has no wait
  CHECK_FALSE(cuda::can_launch_dependent(90, 12020));
}

TEST_CASE("the key asks a column-major library for the row-major GEMM") {
  const int64_t M = 5, N = 7, K = 3;
  const Array a = Array::normal(DType::f32, M * K, 1), b = Array::normal(DType::f32, K * N, 2);
  for (bool trans_a : {false, true})
    for (bool trans_b : {false, true}) {
      CAPTURE(trans_a, trans_b);
      Array c(DType::f32, M * N);
      const Matmul m{.a = a,
                     .b = b,
                     .c_MN = c,
                     .M = M,
                     .N = N,
                     .K = K,
                     .trans_a = trans_a,
                     .trans_b = trans_b};
      cpu::run(m);
      Closeness close("cuBLASLt key");
      REQUIRE(close(c, library(cuda::key_of(m), a, b), {.K = 3, .scale = 4}) == "");
    }
}

TEST_CASE("the library gets gelu and sums only if its rules allow") {
  alignas(128) char memory[1024];
  const auto at = [&](int64_t offset, DType type = DType::bf16) {
    return Span{memory + offset, 64, type};
  };
  const Matmul product{.a = at(0), .b = at(128), .c_MN = at(256), .M = 8, .N = 8, .K = 8};
  Matmul gelu = product, dgelu = product, sums = product;
  gelu.gelu_input_MN = at(384);
  dgelu.dgelu_of_MN = at(384);
  sums.a_sums_M = at(384, DType::f32), sums.c_MN = at(256, DType::f32), sums.trans_a = true;
  REQUIRE(cuda::epilogue_of(product) == cuda::Epilogue::none);
  REQUIRE(cuda::epilogue_of(gelu) == cuda::Epilogue::gelu);
  REQUIRE(cuda::epilogue_of(dgelu) == cuda::Epilogue::dgelu);
  REQUIRE(cuda::epilogue_of(sums) == cuda::Epilogue::sums);
  Matmul with_bias = gelu;
  with_bias.bias_N = at(512);
  REQUIRE(cuda::epilogue_of(with_bias) == cuda::Epilogue::gelu_bias);
  for (const Matmul& m : {gelu, dgelu, sums, with_bias}) {
    CAPTURE(int(cuda::epilogue_of(m)));
    CHECK(cuda::epilogue_fits_library(m));
    const auto fits = [&](auto change) {
      Matmul other = m;
      change(other);
      return cuda::epilogue_fits_library(other);
    };
    CHECK(!fits([&](Matmul& x) { x.a = at(0, DType::f32), x.b = at(128, DType::f32); }));
    CHECK(!fits([&](Matmul& x) { x.a = at(2); }));
    CHECK(!fits([&](Matmul& x) { x.K = 0; }));
    const bool is_sums = bool(m.a_sums_M);
    CHECK(fits([&](Matmul& x) { x.N = 7; }) == is_sums);
    CHECK(!fits([&](Matmul& x) { x.c_MN.dtype = is_sums ? DType::bf16 : DType::f32; }));
    CHECK(cuda::key_of(m) != cuda::key_of(product));
  }
  with_bias.bias_N = at(512, DType::f32);
  CHECK(!cuda::epilogue_fits_library(with_bias));
  with_bias.bias_N = at(514);
  CHECK(!cuda::epilogue_fits_library(with_bias));
}

TEST_CASE("inputs that affect the algorithm change the key") {
  alignas(128) float memory[128];
  const auto at = [&](int64_t offset, DType type = DType::f32) {
    return Span{memory + offset, 16, type};
  };
  const Matmul m{.a = at(0), .b = at(32), .c_MN = at(64), .M = 4, .N = 4, .K = 4};
  const cuda::MatmulKey key = cuda::key_of(m);
  REQUIRE(key == cuda::key_of(m));
  REQUIRE(key.a_alignment == 128);
  const auto differs = [&](auto change) {
    Matmul other = m;
    change(other);
    return cuda::key_of(other) != key;
  };
  CHECK(differs([](Matmul& x) { x.M = 3; }));
  CHECK(differs([](Matmul& x) { x.K = 3; }));
  CHECK(differs([](Matmul& x) { x.trans_a = true; }));
  CHECK(differs([](Matmul& x) { x.accumulate = true; }));
  CHECK(differs([](Matmul& x) { x.sm_margin = 16; }));
  CHECK(differs([&](Matmul& x) { x.bias_N = at(100); }));
  CHECK(differs([&](Matmul& x) { x.a = at(1); }));  // 4 bytes off a border: a different alignment
  CHECK(differs([&](Matmul& x) { x.c_MN = at(64, DType::bf16); }));
  CHECK(!differs([&](Matmul& x) { x.a = at(96); }));
  REQUIRE(cuda::alignment_of(memory + 1) == 4);
  REQUIRE(cuda::alignment_of(memory + 4) == 16);
}

TEST_CASE("operands of two types meet in fp32, and fp32 results become bf16 in a second step") {
  const auto of = [](DType a, DType b, DType c) {
    return Matmul{.a = {nullptr, 0, a}, .b = {nullptr, 0, b}, .c_MN = {nullptr, 0, c}};
  };
  const DType f32 = DType::f32, bf16 = DType::bf16;
  for (DType c : {f32, bf16}) {
    const auto one = cuda::conversions_of(of(bf16, f32, c)),
               two = cuda::conversions_of(of(f32, bf16, c));
    REQUIRE((one.a && !one.b && !two.a && two.b));
    REQUIRE(cuda::needs_wide_c(of(bf16, f32, c)) == (c == bf16));
    const auto same = cuda::conversions_of(of(bf16, bf16, c));
    REQUIRE((!same.a && !same.b && !cuda::needs_wide_c(of(bf16, bf16, c))));
  }
}

TEST_CASE("a bias of another type, or off 16-byte borders, is copied") {
  alignas(16) float memory[8];
  const auto with = [&](Span bias) { return Matmul{.bias_N = bias}; };
  const DType f32 = DType::f32, bf16 = DType::bf16;
  REQUIRE(!cuda::must_copy_bias(with({memory, 4, f32}), f32));
  REQUIRE(cuda::must_copy_bias(with({memory, 4, f32}), bf16));
  REQUIRE(cuda::must_copy_bias(with({memory + 1, 4, f32}), f32));
  REQUIRE(!cuda::must_copy_bias(with({}), bf16));
}

TEST_CASE("8-bit GEMMs go to the library as they are, if they fit it") {
  alignas(128) uint8_t memory[4096];
  const auto at = [&](int64_t offset, DType type) { return Span{memory + offset, 256, type}; };
  const DType e4m3 = DType::f8e4m3, e5m2 = DType::f8e5m2;
  float inverse = 1;
  Matmul m{.a = at(0, e5m2), .b = at(256, e4m3), .c_MN = at(512, DType::bf16)};
  m.M = 5, m.N = 16, m.K = 32, m.trans_b = true;
  m.a_inverse = m.b_inverse = {&inverse, 1, DType::f32};
  REQUIRE(cuda::float8_fits_library(m));
  const auto convert = cuda::conversions_of(m);
  REQUIRE((!convert.a && !convert.b && !cuda::needs_wide_c(m)));
  // fp8 GEMMs with fp32 results take a bf16 bias; all others one of the result's type.
  REQUIRE(cuda::bias_type(m, DType::f32) == DType::bf16);
  for (const DType c : {DType::bf16, DType::f16}) REQUIRE(cuda::bias_type(m, c) == c);
  REQUIRE(cuda::bias_type(Matmul{}, DType::f32) == DType::f32);
  const cuda::MatmulKey key = cuda::key_of(m);
  REQUIRE((key.a == e5m2 && key.b == e4m3 && key.a_stride() == 32 && key.b_stride() == 32));
  const auto fits = [&](auto change) {
    Matmul other = m;
    change(other);
    return cuda::float8_fits_library(other);
  };
  CHECK(!fits([](Matmul& x) { x.K = 24; }));
  CHECK(!fits([](Matmul& x) { x.N = 8; }));
  CHECK(!fits([](Matmul& x) { x.trans_a = true; }));
  CHECK(!fits([](Matmul& x) { x.trans_b = false; }));
  CHECK(!fits([&](Matmul& x) { x.b.dtype = e5m2; }));  // no hardware has e5m2 by e5m2
  CHECK(!fits([&](Matmul& x) { x.a.dtype = DType::bf16; }));
  CHECK(!fits([&](Matmul& x) { x.b = at(264, e4m3); }));
  CHECK(!fits([&](Matmul& x) { x.a_inverse = {}; }));
  CHECK(fits([&](Matmul& x) { x.M = 1; }));
  Matmul fast = m;
  fast.fast = true;
  REQUIRE(cuda::key_of(fast) != key);
}

TEST_CASE(
    "8-bit GEMMs under scales of blocks are other plans, and need scales on 16-byte borders") {
  alignas(128) uint8_t memory[8192];
  const auto at = [&](int64_t offset, DType type, int64_t count) {
    return Span{memory + offset, count, type};
  };
  Matmul m{.a = at(0, DType::f8e4m3, 2048),
           .b = at(2048, DType::f8e4m3, 2048),
           .c_MN = at(4096, DType::bf16, 256),
           .M = 16,
           .N = 16,
           .K = 128,
           .trans_b = true,
           .a_inverse = at(6144, DType::f32, 16),
           .b_inverse = at(6400, DType::f32, 16)};
  const cuda::MatmulKey plain = cuda::key_of(m);
  m.a_blocks = ScaleBlocks::rows_128, m.b_blocks = ScaleBlocks::square_128;
  REQUIRE(cuda::float8_fits_library(m));
  const cuda::MatmulKey key = cuda::key_of(m);
  CHECK(key != plain);
  CHECK((key.a_blocks == ScaleBlocks::rows_128 && key.b_blocks == ScaleBlocks::square_128));
  // The library refuses fast sums with them.
  Matmul fast = m;
  fast.fast = true;
  CHECK(cuda::key_of(fast) == key);
  const auto fits = [&](auto change) {
    Matmul other = m;
    change(other);
    return cuda::float8_fits_library(other);
  };
  CHECK(fits([](Matmul& x) { x.b_blocks = ScaleBlocks::rows_128; }));
  CHECK(!fits([](Matmul& x) { x.a_blocks = ScaleBlocks::square_128; }));
  CHECK(!fits([](Matmul& x) { x.b_blocks = ScaleBlocks::none; }));
  CHECK(!fits([](Matmul& x) { x.K = 112; }));
  CHECK(!fits([&](Matmul& x) { x.a_inverse = at(6148, DType::f32, 16); }));
  CHECK(!fits([&](Matmul& x) { x.a_inverse = at(6144, DType::f32, 15); }));
  CHECK(!fits([&](Matmul& x) { x.a_inverse = at(6144, DType::u8, 16); }));
}

TEST_CASE("a plan is made once for a key, and asked for again where making it failed") {
  cuda::PlanCache<cuda::MatmulKey, int> plans;
  int made = 0;
  const auto make = [&] { return ++made; };
  cuda::MatmulKey key{.M = 1, .N = 2, .K = 3};
  REQUIRE_THROWS(plans.get(key, []() -> int { throw std::runtime_error("no algorithm"); }));
  REQUIRE(plans.size() == 0);
  REQUIRE(plans.get(key, make) == 1);
  REQUIRE(plans.get(key, make) == 1);
  key.trans_b = true;
  REQUIRE(plans.get(key, make) == 2);
  REQUIRE(plans.size() == 2);
}

}  // namespace kernels_cuda_plan_test
