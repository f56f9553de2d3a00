#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/fp8.h"
#include "kernels/matmul.h"
#include "test/support/kernels_testing.h"

namespace kernels_fp8_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

const std::vector<DType> kFloat8s{DType::f8e4m3, DType::f8e5m2};

// x rounded to the type; base_numbers_test compares the types with a reference.
double stored(DType type, double x) {
  return with_float8(type, [&]<class T>() { return double(float(T(float(x)))); });
}

}  // namespace

TEST_CASE("amax is the largest finite size, and scales bring it to the type's largest") {
  for (DType dtype : kFloats)
    for (int64_t n : {0, 1, 7, 1001, 100003}) {
      Array x = Array::normal(dtype, n, 1);
      if (n > 4) x.set(2, INFINITY), x.set(3, -INFINITY), x.set(4, NAN);
      double largest = 0;
      for (double v : x.values())
        if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
      for (DType type : kFloat8s)
        for (int margin : {0, 3}) {
          CAPTURE(n, dtype, type, margin);
          Array amax = Array::one(DType::f32, 100), scale(DType::f32, 1), inverse(DType::f32, 1);
          cpu::run(Amax{.x = x,
                        .amax = amax,
                        .scale = scale,
                        .inverse = inverse,
                        .type = type,
                        .margin = margin});
          REQUIRE(amax[0] == largest);
          const double wanted = n ? double(largest_float8(type)) / largest / (1 << margin) : 1;
          REQUIRE(scale[0] == Approx(wanted).epsilon(1e-6));
          REQUIRE(inverse[0] == Approx(1 / wanted).epsilon(1e-6));
        }
    }
  // For the smallest positive number the scale would overflow to infinity.
  Array scale(DType::f32, 1), inverse(DType::f32, 1), amax(DType::f32, 1);
  cpu::run(Amax{Array::one(DType::f32, 1e-45), amax, scale, inverse});
  REQUIRE(std::isfinite(scale[0]));
  REQUIRE(scale[0] * inverse[0] == 1);
}

TEST_CASE("quantizing rounds, saturates, and writes the transpose, padded with zeros") {
  for (DType dtype : kFloats)
    for (DType type : kFloat8s)
      for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {64, 48}, {100, 130}}) {
        CAPTURE(dtype, type, T, N);
        const int64_t stride = (T + 15) / 16 * 16;
        Array x = Array::normal(dtype, T * N, 3);
        const double factor =
            type == DType::f8e4m3 ? 200 : 3e4;  // some are beyond the type's range
        const Array scale = Array::one(DType::f32, factor);
        Array y(type, T * N), transposed = Array(type, N * stride);
        for (int64_t i = 0; i < N * stride; ++i) transposed.set(i, 1);
        Array amax = Array::one(DType::f32, 0.5);
        cpu::run(Quantize{.x_TN = x,
                          .scale = scale,
                          .y_TN = y,
                          .y_NT = transposed,
                          .amax = amax,
                          .T = T,
                          .N = N,
                          .stride = stride});
        double largest = 0.5;
        for (int64_t t = 0; t < T; ++t)
          for (int64_t n = 0; n < N; ++n) {
            const double v = x[t * N + n];
            largest = std::max(largest, std::abs(v));
            REQUIRE(y[t * N + n] == stored(type, double(float(v) * float(factor))));
            REQUIRE(transposed[n * stride + t] == y[t * N + n]);
          }
        for (int64_t n = 0; n < N; ++n)
          for (int64_t t = T; t < stride; ++t) REQUIRE(transposed[n * stride + t] == 0);
        REQUIRE(amax[0] == largest);
        REQUIRE((y.margin_untouched() && transposed.margin_untouched()));
      }
  Array x(DType::f32, std::vector<double>{INFINITY, NAN, 1e30, -1e30}), y(DType::f8e5m2, 4);
  cpu::run(Quantize{.x_TN = x, .scale = Array::one(DType::f32, 1), .y_TN = y, .T = 1, .N = 4});
  REQUIRE((std::isnan(y[0]) && std::isnan(y[1])));  // NaN stays NaN
  REQUIRE((y[2] == 57344 && y[3] == -57344));
}

TEST_CASE("delayed scales follow the last amax or the history's largest") {
  Array amax(DType::f32, 2), history(DType::f32, 2 * 3), scale(DType::f32, std::vector{1.0, 1.0}),
      inverse(DType::f32, std::vector{1.0, 1.0});
  const auto step = [&](int64_t place, double first, double second, bool most_recent) {
    amax.set(0, first), amax.set(1, second);
    cpu::run(UpdateScales{.amax_C = amax,
                          .history_CL = history,
                          .C = 2,
                          .L = 3,
                          .place = place,
                          .most_recent = most_recent,
                          .type = DType::f8e4m3,
                          .margin = 1,
                          .scale_C = scale,
                          .inverse_C = inverse});
    REQUIRE((amax[0] == 0 && amax[1] == 0));
    return std::pair(scale[0], scale[1]);
  };
  REQUIRE(step(0, 8, 0, true) == std::pair(28.0, 1.0));  // 448 / 8 / 2; none: unchanged
  REQUIRE(inverse[0] == Approx(1 / 28.0));
  REQUIRE(step(1, 4, 2, true) == std::pair(56.0, 112.0));
  REQUIRE(step(2, 2, 1, false) == std::pair(28.0, 112.0));
  REQUIRE(step(0, 1, 1, false) == std::pair(56.0, 112.0));  // the 8 is forgotten
  REQUIRE(step(1, 0, 0, true) == std::pair(56.0, 112.0));
  REQUIRE(history.values() == std::vector<double>{1, 0, 2, 1, 0, 1});
}

TEST_CASE("a step that updates nothing leaves histories as they are, but an empty one takes it") {
  const Array skipped = Array::one(DType::f32, NAN), used = Array::one(DType::f32, 1);
  for (const bool most_recent : {false, true}) {
    Array history(DType::f32, std::vector<double>{0, 4, 0, 0}),
        amax(DType::f32, std::vector{8.0, 8.0}), scale(DType::f32, std::vector{56.0, 1.0}),
        inverse(DType::f32, std::vector{1 / 56.0, 1.0});
    const auto step = [&](const Array& grad_scale) {
      cpu::run(UpdateScales{.grad_scale = grad_scale,
                            .amax_C = amax,
                            .history_CL = history,
                            .C = 2,
                            .L = 2,
                            .place = 0,
                            .most_recent = most_recent,
                            .type = DType::f8e4m3,
                            .margin = 1,
                            .scale_C = scale,
                            .inverse_C = inverse});
      REQUIRE((amax[0] == 0 && amax[1] == 0));
    };
    amax.set(1, INFINITY);  // a scale would be 0 for good
    step(skipped);
    REQUIRE(history.values() == std::vector<double>{0, 4, 0, 0});
    REQUIRE((scale[0] == 56 && scale[1] == 1));
    amax.set(0, 8), amax.set(1, 8);
    step(skipped);
    REQUIRE(history.values() == std::vector<double>{0, 4, 8, 0});
    REQUIRE((scale[0] == 56 && scale[1] == 28));
    amax.set(0, 8), amax.set(1, 8);
    step(used);
    REQUIRE(history.values() == std::vector<double>{8, 4, 8, 0});
    REQUIRE((scale[0] == 28 && scale[1] == 28));
  }
}

TEST_CASE("8-bit GEMMs equal those of the numbers that the operands represent") {
  for (auto [ta, tb] : {std::pair{DType::f8e4m3, DType::f8e4m3},
                        {DType::f8e5m2, DType::f8e4m3},
                        {DType::f8e4m3, DType::f8e5m2}})
    for (DType tc : kFloats)
      for (int extra : {0, 1, 2}) {  // nothing, a bias, accumulation
        if (extra == 2 && tc != DType::f32) continue;
        const int64_t M = 21, N = 48, K = 80;
        const Array a = Array::normal(ta, M * K, 1), b = Array::normal(tb, N * K, 2),
                    bias = Array::normal(DType::bf16, N, 3);
        Array c = Array::normal(tc, M * N, 4);
        std::vector<double> want(size_t(M * N));
        for (int64_t m = 0; m < M; ++m)
          for (int64_t n = 0; n < N; ++n) {
            double sum = 0;
            for (int64_t k = 0; k < K; ++k) sum += a[m * K + k] * b[n * K + k];
            want[size_t(m * N + n)] = sum * 0.25 * 3 + (extra == 1   ? bias[n]
                                                        : extra == 2 ? c[m * N + n]
                                                                     : 0);
          }
        Matmul p{.a = a,
                 .b = b,
                 .c_MN = c,
                 .M = M,
                 .N = N,
                 .K = K,
                 .trans_b = true,
                 .accumulate = extra == 2};
        const Array a_inverse = Array::one(DType::f32, 0.25), b_inverse = Array::one(DType::f32, 3);
        p.a_inverse = a_inverse.span(), p.b_inverse = b_inverse.span();
        if (extra == 1) p.bias_N = bias;
        cpu::run(p);
        Closeness close("8-bit GEMM to " + std::string(dtype_name(tc)));
        REQUIRE(close(c, want, {.dtype = tc, .K = double(K), .scale = 4, .sums = DType::f32}) ==
                "");
        p.trans_b = false;
        REQUIRE_THROWS_AS(cpu::run(p), BugError);
        p.trans_b = true, p.K = K - 1;
        REQUIRE_THROWS_AS(cpu::run(p), BugError);
      }
}

}  // namespace kernels_fp8_test
