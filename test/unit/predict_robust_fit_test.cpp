// Fits of few unknowns to rows whose best fit is known.
#include <catch2/catch.hpp>
#include <cmath>

#include "predict/robust_fit.h"

namespace predict_robust_fit_test {

using namespace mtrain::predict;

namespace {

// Rows of a line, offset + slope x, with one row that is far off.
struct Line {
  double offset = 2, slope = -0.5, wrong = 0;
  FitVector residuals(const FitVector& at) const {
    FitVector out;
    for (int x = 0; x < 12; ++x) {
      const double measured = offset + slope * x + (x == 5 ? wrong : 0);
      out.push_back((at[0] + at[1] * x - measured) / 0.01);
    }
    return out;
  }
};

RobustProblem problem(const Line& line, double deviation) {
  return {.prior = {0, 0},
          .deviation = {deviation, deviation},
          .residuals = [line](const FitVector& at) { return line.residuals(at); }};
}

}  // namespace

TEST_CASE("equations with a positive definite matrix are solved") {
  const FitVector x = solve_positive({{4, 2, 0}, {2, 5, 1}, {0, 1, 3}}, {8, 15, 11});
  CHECK(x[0] == Approx(1));
  CHECK(x[1] == Approx(2));
  CHECK(x[2] == Approx(3));
}

TEST_CASE("a fit finds the unknowns of rows that a wide prior does not hold back") {
  const RobustFit fit(problem({}, 1000), FitVector(12, 1.0));
  CHECK(fit.unknowns()[0] == Approx(2).epsilon(1e-4));
  CHECK(fit.unknowns()[1] == Approx(-0.5).epsilon(1e-4));
}

TEST_CASE("a narrow prior keeps an unknown that rows say nothing else about") {
  RobustProblem p = problem({}, 1000);
  p.prior.push_back(7);
  p.deviation.push_back(0.5);
  const RobustFit fit(p, FitVector(12, 1.0));
  CHECK(fit.unknowns()[2] == Approx(7));
}

TEST_CASE("one wrong row moves a robust fit little, and one of weight 0 not at all") {
  const RobustProblem p = problem({.wrong = 100}, 1000);
  const RobustFit fit(p, FitVector(12, 1.0));
  CHECK(std::abs(fit.unknowns()[0] - 2) < 0.02);
  FitVector without(12, 1.0);
  without[5] = 0;
  const FitVector refitted = fit.refit(without);
  CHECK(refitted[0] == Approx(2).epsilon(1e-4));
  CHECK(refitted[1] == Approx(-0.5).epsilon(1e-4));
}

TEST_CASE("a fit of rows that are not linear ends at their minimum") {
  // Sums of two exponentials, as times are in the logs of constants.
  RobustProblem p{.prior = {0, 0}, .deviation = {10, 10}, .residuals = [](const FitVector& at) {
                    FitVector out;
                    for (int x = 1; x < 10; ++x) {
                      const double measured = x * std::exp(1.5) + 20 / x * std::exp(-0.7);
                      const double now = x * std::exp(at[0]) + 20 / x * std::exp(at[1]);
                      out.push_back(std::log(now / measured) / 0.04);
                    }
                    return out;
                  }};
  const RobustFit fit(p, FitVector(9, 1.0));
  CHECK(fit.unknowns()[0] == Approx(1.5).epsilon(1e-2));
  CHECK(fit.unknowns()[1] == Approx(-0.7).epsilon(1e-2));
}

}  // namespace predict_robust_fit_test
