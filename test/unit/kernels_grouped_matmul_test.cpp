// GEMMs of experts equal those of each expert alone, bit by bit. The reference is a GEMM of the
// same operands, which kernels_matmul_test.cpp compares with float64. GEMMs of 8-bit operands are
// compared with float64 here.
#include <cmath>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/grouped_matmul.h"
#include "test/support/kernels_testing.h"

namespace kernels_grouped_matmul_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

ConstSpan part(const Array& a, int64_t begin, int64_t count) {
  return {a.span().as<char>() + begin * dtype_size(a.dtype()), count, a.dtype()};
}
Span part(Array& a, int64_t begin, int64_t count) {
  return {a.span().as<char>() + begin * dtype_size(a.dtype()), count, a.dtype()};
}

struct Experts {
  std::vector<int32_t> first;
  int64_t E() const { return int64_t(first.size()) - 1; }
  int64_t rows(int64_t e) const { return first[e + 1] - first[e]; }
};
Experts experts(const std::vector<int64_t>& rows) {
  Experts x{{0}};
  for (int64_t n : rows) x.first.push_back(x.first.back() + int32_t(n));
  return x;
}

std::vector<Bf16Arithmetic> arithmetics(DType type) {
  std::vector<Bf16Arithmetic> all{Bf16Arithmetic::widened};
  if (type != DType::bf16) return all;
  for (Bf16Arithmetic a : {Bf16Arithmetic::dot_products, Bf16Arithmetic::tiles})
    if (cpu::supports(a)) all.push_back(a);
  return all;
}

void for_each_pool(const std::function<void()>& fn) {
  fn();
  for (int threads : {2, 3}) {
    ThreadPool pool(threads);
    const ThreadPool::Scope scope(&pool);
    fn();
  }
}

const std::vector<std::vector<int64_t>> kRows = {
    {5}, {0, 0}, {1, 0, 3, 0}, {64, 64, 64, 64}, {300, 1, 0, 40, 7, 90}, {0, 17, 1200, 0, 2}};

}  // namespace

TEST_CASE("rows of experts have the bits of each expert's own product") {
  for (DType type : kFloats)
    for (const auto& rows : kRows)
      for (bool trans : {false, true})
        for (Bf16Arithmetic bf16 : arithmetics(type)) {
          const Experts x = experts(rows);
          const int64_t K = 72, N = 100, R = x.first.back() + 3, E = x.E();  // 3 rows are unused
          const Array a = Array::normal(type, R * K, 1), b = Array::normal(type, E * K * N, 2),
                      first = Array::ids(x.first);
          Array want = Array::normal(type, R * N, 3);
          for (int64_t e = 0; e < E; ++e)
            cpu::run(Matmul{.a = part(a, x.first[e] * K, x.rows(e) * K),
                            .b = part(b, e * K * N, K * N),
                            .bias_N = {},
                            .c_MN = part(want, x.first[e] * N, x.rows(e) * N),
                            .M = x.rows(e),
                            .N = N,
                            .K = K,
                            .trans_b = trans,
                            .bf16 = bf16});
          for_each_pool([&] {
            CAPTURE(type, rows, trans, bf16, current_threads());
            Array got = Array::normal(type, R * N, 3);
            cpu::run(GroupedMatmul{.a_RK = a,
                                   .b_EKN = b,
                                   .first_E1 = first,
                                   .c_RN = got,
                                   .R = R,
                                   .N = N,
                                   .K = K,
                                   .E = E,
                                   .trans_b = trans,
                                   .bf16 = bf16});
            REQUIRE(got == want);
          });
        }
}

TEST_CASE("gradients of experts' weights have the bits of each expert's own; without rows, zeros") {
  for (DType type : kFloats)
    for (const auto& rows : kRows)
      for (bool accumulate : {false, true})
        for (Bf16Arithmetic bf16 : arithmetics(type)) {
          const Experts x = experts(rows);
          const int64_t M = 90, N = 70, R = x.first.back(), E = x.E();
          const Array a = Array::normal(type, R * M, 1), b = Array::normal(type, R * N, 2),
                      first = Array::ids(x.first);
          Array want = Array::normal(DType::f32, E * M * N, 3);
          for (int64_t e = 0; e < E; ++e)
            cpu::run(Matmul{.a = part(a, x.first[e] * M, x.rows(e) * M),
                            .b = part(b, x.first[e] * N, x.rows(e) * N),
                            .bias_N = {},
                            .c_MN = part(want, e * M * N, M * N),
                            .M = M,
                            .N = N,
                            .K = x.rows(e),
                            .trans_a = true,
                            .accumulate = accumulate,
                            .bf16 = bf16});
          for_each_pool([&] {
            CAPTURE(type, rows, accumulate, bf16, current_threads());
            Array got = Array::normal(DType::f32, E * M * N, 3);
            cpu::run(GroupedWeightGrad{.a_RM = a,
                                       .b_RN = b,
                                       .first_E1 = first,
                                       .c_EMN = got,
                                       .R = R,
                                       .M = M,
                                       .N = N,
                                       .E = E,
                                       .accumulate = accumulate,
                                       .bf16 = bf16});
            REQUIRE(got == want);
          });
        }
}

namespace {

// The types of the operands in forward, and with gradients in either format.
const std::vector<std::pair<DType, DType>> kFloat8s = {
    {DType::f8e4m3, DType::f8e4m3}, {DType::f8e5m2, DType::f8e4m3}, {DType::f8e4m3, DType::f8e5m2}};

// The running sum of K products of normal numbers stays below four deviations, 4 sqrt(K).
Rule rule(DType type, int64_t K) {
  const double n = double(K + 1);
  return {.dtype = type, .K = n, .scale = 4 * std::sqrt(n), .sums = DType::f32};
}

}  // namespace

TEST_CASE("GEMMs of experts' 8-bit rows are those of the numbers that the rows represent") {
  const Array a_inverse = Array::one(DType::f32, 0.25), b_inverse = Array::one(DType::f32, 3);
  Closeness close("8-bit GEMMs of experts");
  for (const auto& [ta, tb] : kFloat8s)
    for (const auto& rows : kRows)
      for (bool trans : {false, true})
        for (DType out : kFloats) {
          CAPTURE(ta, tb, rows, trans, out);
          const Experts x = experts(rows);
          const int64_t K = 80, N = 48, R = x.first.back() + 3, E = x.E();  // 3 rows are unused
          const Array a = Array::normal(ta, R * K, 1), b = Array::normal(tb, E * K * N, 2),
                      first = Array::ids(x.first);
          Array c = Array::normal(out, R * N, 3);
          std::vector<double> want = c.values();
          for (int64_t e = 0; e < E; ++e)
            for (int64_t r = x.first[e]; r < x.first[e + 1]; ++r)
              for (int64_t n = 0; n < N; ++n) {
                double sum = 0;
                for (int64_t k = 0; k < K; ++k)
                  sum += a[r * K + k] * b[e * K * N + (trans ? n * K + k : k * N + n)];
                want[size_t(r * N + n)] = sum * 0.25 * 3;
              }
          GroupedMatmul m{.a_RK = a,
                          .b_EKN = b,
                          .first_E1 = first,
                          .c_RN = c,
                          .R = R,
                          .N = N,
                          .K = K,
                          .E = E,
                          .trans_b = trans,
                          .a_inverse = a_inverse,
                          .b_inverse = b_inverse};
          cpu::run(m);
          REQUIRE(close(c, want, rule(out, K)) == "");
          REQUIRE(c.margin_untouched());
          m.b_inverse = {};
          REQUIRE_THROWS_AS(cpu::run(m), BugError);
        }
}

TEST_CASE("gradients of experts' weights from 8 bits are those of the represented numbers") {
  const Array a_inverse = Array::one(DType::f32, 0.25), b_inverse = Array::one(DType::f32, 3);
  Closeness close("8-bit gradients of experts");
  for (const auto& [ta, tb] : kFloat8s)
    for (const auto& rows : kRows)
      for (bool accumulate : {false, true}) {
        CAPTURE(ta, tb, rows, accumulate);
        const Experts x = experts(rows);
        const int64_t M = 48, N = 32, R = x.first.back(), E = x.E();
        const Array a = Array::normal(ta, R * M, 1), b = Array::normal(tb, R * N, 2),
                    first = Array::ids(x.first);
        Array c = Array::normal(DType::f32, E * M * N, 3);
        std::vector<double> want = c.values();
        for (int64_t e = 0; e < E; ++e)
          for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n) {
              double sum = 0;
              for (int64_t r = x.first[e]; r < x.first[e + 1]; ++r)
                sum += a[r * M + m] * b[r * N + n];
              double& w = want[size_t((e * M + m) * N + n)];
              w = (accumulate ? w : 0) + sum * 0.25 * 3;
            }
        GroupedWeightGrad m{.a_RM = a,
                            .b_RN = b,
                            .first_E1 = first,
                            .c_EMN = c,
                            .R = R,
                            .M = M,
                            .N = N,
                            .E = E,
                            .accumulate = accumulate,
                            .a_inverse = a_inverse,
                            .b_inverse = b_inverse};
        cpu::run(m);
        REQUIRE(close(c, want, rule(DType::f32, R)) == "");
        m.M = 40;
        REQUIRE_THROWS_AS(cpu::run(m), BugError);
      }
}

TEST_CASE("a row's bits do not depend on how many rows its expert has") {
  for (DType type : {DType::f32, DType::bf16})
    for (Bf16Arithmetic bf16 : arithmetics(type)) {
      const int64_t K = 200, N = 600, R = 700;
      const Array a = Array::normal(type, R * K, 1), b = Array::normal(type, K * N, 2);
      const auto product = [&](int64_t begin, int64_t rows) {
        Array c(DType::f32, rows * N);
        cpu::run(GroupedMatmul{.a_RK = part(a, begin * K, rows * K),
                               .b_EKN = b,
                               .first_E1 = Array::ids({0, int32_t(rows)}),
                               .c_RN = c,
                               .R = rows,
                               .N = N,
                               .K = K,
                               .E = 1,
                               .trans_b = true,
                               .bf16 = bf16});
        return c.values();
      };
      const auto whole = product(0, R);
      for (auto [begin, rows] : {std::pair<int64_t, int64_t>{0, 1}, {13, 40}, {300, 400}}) {
        CAPTURE(type, bf16, begin, rows);
        const auto alone = product(begin, rows);
        REQUIRE(std::equal(alone.begin(), alone.end(), whole.begin() + begin * N));
      }
    }
}

TEST_CASE("rows that fall or lie outside of the operands are refused") {
  const Array a(DType::f32, 8), b(DType::f32, 8);
  Array c(DType::f32, 8);
  for (const std::vector<int32_t>& first : {std::vector<int32_t>{0, 3, 2}, {1, 2, 2}, {0, 2, 5}}) {
    CAPTURE(first);
    CHECK_THROWS_AS(cpu::run(GroupedMatmul{.a_RK = a,
                                           .b_EKN = b,
                                           .first_E1 = Array::ids(first),
                                           .c_RN = c,
                                           .R = 4,
                                           .N = 2,
                                           .K = 2,
                                           .E = 2}),
                    BugError);
  }
}

}  // namespace kernels_grouped_matmul_test
