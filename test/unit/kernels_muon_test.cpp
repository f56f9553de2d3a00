// The element-wise kernels of Muon, compared with float64 under every instruction set.
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/muon.h"
#include "test/support/kernels_testing.h"

namespace kernels_muon_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

TEST_CASE("the direction is the momentum, or the gradient and its momentum after Nesterov") {
  Closeness close("muon direction");
  for (int64_t n : {1, 7, 1001, 40001})
    for (const bool nesterov : {false, true})
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, n, nesterov);
        const Array scale = Array::one(DType::f32, 0.25);
        Array momentum = Array::normal(DType::f32, n, 1), grad = Array::normal(DType::f32, n, 2);
        std::vector<double> m = momentum.values(), d = grad.values();
        for (size_t i = 0; i < m.size(); ++i) {
          const double g = 0.25 * d[i], beta = 0.9f;
          m[i] += (1 - beta) * (g - m[i]);
          d[i] = nesterov ? g + beta * (m[i] - g) : m[i];
        }
        cpu::run(MuonDirection{.momentum = momentum,
                               .grad = grad,
                               .grad_scale = scale,
                               .beta = 0.9f,
                               .nesterov = nesterov});
        REQUIRE(close(momentum, m, {.K = 4}) == "");
        REQUIRE(close(grad, d, {.K = 8}) == "");
        REQUIRE((momentum.margin_untouched() && grad.margin_untouched()));
      });
}

TEST_CASE("a scale that is not finite keeps momentum and weights, and makes the direction 0") {
  constexpr int64_t n = 33;
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    const Array nan = Array::one(DType::f32, std::numeric_limits<double>::quiet_NaN());
    Array momentum = Array::normal(DType::f32, n, 1), grad = Array::normal(DType::f32, n, 2),
          master = Array::normal(DType::f32, n, 3);
    const auto before = momentum.values(), weights = master.values();
    cpu::run(MuonDirection{.momentum = momentum, .grad = grad, .grad_scale = nan, .beta = 0.9f});
    CHECK(momentum.values() == before);
    CHECK(grad.values() == std::vector<double>(n));
    cpu::run(MuonUpdate{
        .master = master, .direction = momentum, .grad_scale = nan, .lr = 1, .weight_decay = 1});
    CHECK(master.values() == weights);
  });
}

TEST_CASE("a matrix is divided by its norm, or by eps if that is larger") {
  Closeness close("normalize");
  for (const double squares : {4.0, 1e-8})
    for_each_isa([&](const char* isa) {
      CAPTURE(isa, squares);
      Array x = Array::normal(DType::f32, 1001, 1);
      std::vector<double> want = x.values();
      for (double& v : want) v /= squares == 4 ? 2 : double(0.5f);
      cpu::run(MuonNormalize{.x = x, .sum_squares = Array::one(DType::f64, squares), .eps = 0.5f});
      REQUIRE(close(x, want, {.K = 2}) == "");
    });
}

TEST_CASE("an update decays the weight, and writes its 16-bit copy") {
  Closeness close("muon update");
  for (const DType copy : {DType::bf16, DType::f16})
    for_each_isa([&](const char* isa) {
      CAPTURE(isa);
      constexpr int64_t n = 1003;
      Array master = Array::normal(DType::f32, n, 1), param(copy, n);
      const Array direction = Array::normal(DType::f32, n, 2);
      std::vector<double> want = master.values();
      for (int64_t i = 0; i < n; ++i)
        want[size_t(i)] -= double(0.01f) * (direction[i] + double(0.3f) * want[size_t(i)]);
      cpu::run(MuonUpdate{.master = master,
                          .direction = direction,
                          .param = param,
                          .lr = 0.01f,
                          .weight_decay = 0.3f});
      REQUIRE(close(master, want, {.K = 4}) == "");
      REQUIRE(param == Array(copy, master.values()));
    });
}

}  // namespace kernels_muon_test
