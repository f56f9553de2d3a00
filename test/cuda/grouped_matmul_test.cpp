#include "kernels/grouped_matmul.h"

#include <cmath>

#include "grouped_testing.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

const std::vector<std::vector<int32_t>> kFirst = {
    {0, 5}, {0, 0, 0}, {0, 1, 1, 4, 4}, {0, 130, 131, 131, 200}, {0, 0, 300}};

struct Sizes {
  int64_t K, N;  // N is also a weight's other side
};
const std::vector<Sizes> kSizes = {{1, 1}, {33, 35}, {64, 128}, {136, 24}, {72, 264}};

// The running sum of K products of normal numbers stays below four deviations, 4 sqrt(K), and every
// addition rounds at that size.
Rule rule(DType type, int64_t K) {
  const double n = double(K + 1);
  return {.dtype = type, .K = n, .scale = 4 * std::sqrt(n), .sums = DType::f32};
}

}  // namespace

TEST_CASE("products of experts' rows equal the CPU's") {
  Closeness close("grouped matmul");
  for (const auto& first : kFirst)
    for (const Sizes& s : kSizes)
      for (DType type : kFloats)
        for (DType out : {type, DType::f32})
          for (bool trans : {false, true})
            for_each_way([&](int64_t offset) {
              const int64_t E = int64_t(first.size()) - 1, R = first.back() + 2;
              CAPTURE(first, s.K, s.N, type, out, trans);
              GroupedRows x(Array::normal(type, R * s.K, 1), Array::normal(type, E * s.K * s.N, 2),
                            first, Array::normal(out, R * s.N, 3), s.N, s.K, trans, offset);
              cpu::run(x.host());
              cuda::run(x.device(), device_stream());
              REQUIRE(x.c.compare(close, rule(out, s.K)) == "");
            });
}

TEST_CASE("each row has its own expert's weights, with more experts than a warp has lanes") {
  for (const int E : {31, 32, 33, 64, 65, 100})
    for (const DType type : {DType::bf16, DType::f32})
      for (const bool last_alone : {false, true}) {
        CAPTURE(E, type, last_alone);
        std::vector<int32_t> first(size_t(E) + 1, 0);
        for (int e = 0; e < E; ++e)
          first[size_t(e) + 1] = first[size_t(e)] + (last_alone    ? (e == E - 1) * 3
                                                     : e % 16 == 5 ? 129
                                                     : e % 3 == 0  ? 0
                                                                   : 1);
        // A row of ones times weights that name the expert: the result is exact.
        const int64_t R = first.back(), K = 8, N = 8;
        Array ones(type, R * K), weights(type, E * K * N);
        for (int64_t i = 0; i < R * K; ++i) ones.set(i, 1);
        for (int64_t i = 0; i < E * K * N; ++i) weights.set(i, double(i / (K * N)));
        Mirror a(ones), b(weights), rows(Array::ids(first)), c(Array(DType::f32, R * N));
        cuda::run(GroupedMatmul{.a_RK = a.device(),
                                .b_EKN = b.device(),
                                .first_E1 = rows.device(),
                                .c_RN = c.device(),
                                .R = R,
                                .N = N,
                                .K = K,
                                .E = E},
                  device_stream());
        const Array got = c.result();
        for (int e = 0; e < E; ++e)
          for (int64_t i = first[size_t(e)] * N; i < first[size_t(e) + 1] * N; ++i)
            REQUIRE(got[i] == double(e) * double(K));
      }
}

TEST_CASE("gradients of experts' weights equal the CPU's") {
  Closeness close("grouped weight gradient");
  for (const auto& first : kFirst)
    for (const Sizes& s : kSizes)
      for (DType type : kFloats)
        for (bool accumulate : {false, true})
          for_each_way([&](int64_t offset) {
            const int64_t E = int64_t(first.size()) - 1, R = first.back();
            CAPTURE(first, s.K, s.N, type, accumulate);
            GroupedWeights x(Array::normal(type, R * s.K, 1), Array::normal(type, R * s.N, 2),
                             first, Array::normal(DType::f32, E * s.K * s.N, 3), s.K, s.N,
                             accumulate, offset);
            cpu::run(x.host());
            cuda::run(x.device(), device_stream());
            REQUIRE(x.c.compare(close, rule(DType::f32, R)) == "");
          });
}

namespace {

const std::vector<std::pair<DType, DType>> kFloat8s = {
    {DType::f8e4m3, DType::f8e4m3}, {DType::f8e5m2, DType::f8e4m3}, {DType::f8e4m3, DType::f8e5m2}};
// Rows of whole chunks of 16 elements, which are parts of a tile, one tile and several.
const std::vector<Sizes> kFloat8Sizes = {{16, 16}, {80, 32}, {144, 144}};

// Every code of the type among normal numbers, NaN excepted.
Array float8_numbers(DType type, int64_t n, uint64_t key) {
  Array x = Array::normal(type, n, key);
  for (int64_t i = 0; i < n; i += 3)
    x.set(i, with_float8(type, [&]<class T>() {
            T code;
            code.bits = uint8_t((i / 3) % 256);
            const float value = float(code);
            return std::isfinite(value) && std::abs(value) < 8 ? double(value) : 0.5;
          }));
  return x;
}

}  // namespace

TEST_CASE("products of experts' 8-bit rows equal the CPU's") {
  Closeness close("8-bit grouped matmul");
  for (const auto& first : kFirst)
    for (const Sizes& s : kFloat8Sizes)
      for (const auto& types : kFloat8s)
        for (DType out : kFloats)
          for (bool trans : {false, true}) {
            if (out != DType::bf16 && types != kFloat8s[0]) continue;
            for_each_order([&] {
              const int64_t E = int64_t(first.size()) - 1, R = first.back() + 2;
              CAPTURE(first, s.K, s.N, types.first, types.second, out, trans);
              GroupedRows x(float8_numbers(types.first, R * s.K, 1),
                            float8_numbers(types.second, E * s.K * s.N, 2), first,
                            Array::normal(out, R * s.N, 3), s.N, s.K, trans);
              cpu::run(x.host());
              cuda::run(x.device(), device_stream());
              Rule r = rule(out, s.K);
              r.scale *= 8;  // the codes' numbers reach 8
              REQUIRE(x.c.compare(close, r) == "");
            });
          }
}

TEST_CASE("gradients of experts' weights from 8 bits equal the CPU's") {
  Closeness close("8-bit grouped weight gradient");
  for (const auto& first : kFirst)
    for (const Sizes& s : kFloat8Sizes)
      for (const auto& types : kFloat8s)
        for (bool accumulate : {false, true})
          for_each_order([&] {
            const int64_t E = int64_t(first.size()) - 1, R = first.back();
            CAPTURE(first, s.K, s.N, types.first, types.second, accumulate);
            GroupedWeights x(float8_numbers(types.first, R * s.K, 1),
                             float8_numbers(types.second, R * s.N, 2), first,
                             Array::normal(DType::f32, E * s.K * s.N, 3), s.K, s.N, accumulate);
            cpu::run(x.host());
            cuda::run(x.device(), device_stream());
            Rule r = rule(DType::f32, R);
            r.scale *= 8;
            REQUIRE(x.c.compare(close, r) == "");
          });
}

TEST_CASE("a number that is not finite in 8 bits stays so in its expert's GEMMs") {
  for (DType type : {DType::f8e4m3, DType::f8e5m2}) {
    const int64_t K = 32, N = 16, R = 3;
    Array bad = Array::normal(type, R * K, 1);
    bad.set(K + 5, NAN);
    Mirror a(bad), b(Array::normal(DType::f8e4m3, K * N, 2)), rows(Array::ids({0, 3})),
        c(Array(DType::bf16, R * N)), one(Array::one(DType::f32, 1));
    cuda::run(GroupedMatmul{.a_RK = a.device(),
                            .b_EKN = b.device(),
                            .first_E1 = rows.device(),
                            .c_RN = c.device(),
                            .R = R,
                            .N = N,
                            .K = K,
                            .E = 1,
                            .a_inverse = one.device(),
                            .b_inverse = one.device()},
              device_stream());
    const Array got = c.result();
    for (int64_t i = 0; i < R * N; ++i) {
      CAPTURE(type, i);
      REQUIRE(std::isnan(got[i]) == (i / N == 1));
    }
  }
}
