#include "predict/robust_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace mtrain::predict {

namespace {

double square(double x) { return x * x; }

}  // namespace

FitVector solve_positive(std::vector<FitVector> a, FitVector b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      MT_CHECK(i != j || sum > 0, "the matrix is not positive definite");
      a[i][j] = i == j ? std::sqrt(sum) : sum / a[j][j];
    }
    for (size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

RobustFit::RobustFit(RobustProblem problem, FitVector weights) : problem_(std::move(problem)) {
  constexpr int kMostSteps = 40;
  constexpr double kSmallStep = 1e-4;
  at_ = linear_at(problem_.prior);
  cost_ = cost_of(at_.unknowns, at_.residuals, weights);
  for (int step = 0; step < kMostSteps; ++step) {
    const FitVector goal = minimum_of(at_, weights);
    // The rows are not linear, so the goal may be too far.
    FitVector next = goal;
    double cost = cost_of(next, problem_.residuals(next), weights), share = 1;
    while (cost > cost_ && share > 1e-3) {
      share /= 2;
      for (size_t i = 0; i < next.size(); ++i)
        next[i] = at_.unknowns[i] + share * (goal[i] - at_.unknowns[i]);
      cost = cost_of(next, problem_.residuals(next), weights);
    }
    if (cost > cost_) return;
    double most = 0;
    for (size_t i = 0; i < next.size(); ++i)
      most = std::max(most, std::abs(next[i] - at_.unknowns[i]) / problem_.deviation[i]);
    at_ = linear_at(next);
    cost_ = cost;
    if (most < kSmallStep) return;
  }
}

FitVector RobustFit::refit(const FitVector& weights) const {
  Linear linear = at_;
  constexpr int kCorrections = 2;
  for (int i = 0; i < kCorrections; ++i) {
    linear.unknowns = minimum_of(linear, weights);
    linear.residuals = problem_.residuals(linear.unknowns);
  }
  return minimum_of(linear, weights);
}

RobustFit::Linear RobustFit::linear_at(const FitVector& unknowns) const {
  // Far above rounding, and small beside what a constant is known to.
  constexpr double kStep = 1e-3;
  Linear linear{.unknowns = unknowns, .residuals = problem_.residuals(unknowns)};
  for (size_t i = 0; i < unknowns.size(); ++i) {
    FitVector moved = unknowns;
    moved[i] += kStep;
    FitVector derivative = problem_.residuals(moved);
    for (size_t row = 0; row < derivative.size(); ++row)
      derivative[row] = (derivative[row] - linear.residuals[row]) / kStep;
    linear.derivatives.push_back(std::move(derivative));
  }
  return linear;
}

FitVector RobustFit::minimum_of(const Linear& linear, const FitVector& weights) const {
  const size_t n = linear.unknowns.size(), rows = linear.residuals.size();
  constexpr int kReweightings = 40;
  FitVector step(n, 0.0);
  for (int iteration = 0; iteration < kReweightings; ++iteration) {
    // The weights that make squares of the current residuals grow as their soft L1 does.
    FitVector weight(rows);
    for (size_t row = 0; row < rows; ++row) {
      double residual = linear.residuals[row];
      for (size_t i = 0; i < n; ++i) residual += linear.derivatives[i][row] * step[i];
      weight[row] = weights[row] / std::sqrt(1 + square(residual));
    }
    std::vector<FitVector> a(n, FitVector(n, 0.0));
    FitVector b(n);
    for (size_t i = 0; i < n; ++i) {
      const double precision = 1 / square(problem_.deviation[i]);
      b[i] = precision * (problem_.prior[i] - linear.unknowns[i]);
      for (size_t row = 0; row < rows; ++row)
        b[i] -= weight[row] * linear.derivatives[i][row] * linear.residuals[row];
      for (size_t j = 0; j <= i; ++j)
        for (size_t row = 0; row < rows; ++row)
          a[i][j] += weight[row] * linear.derivatives[i][row] * linear.derivatives[j][row];
      a[i][i] += precision;
    }
    step = solve_positive(std::move(a), std::move(b));
  }
  FitVector minimum = linear.unknowns;
  for (size_t i = 0; i < n; ++i) minimum[i] += step[i];
  return minimum;
}

double RobustFit::cost_of(const FitVector& unknowns, const FitVector& residuals,
                          const FitVector& weights) const {
  double cost = 0;
  for (size_t row = 0; row < residuals.size(); ++row)
    cost += weights[row] * 2 * (std::sqrt(1 + square(residuals[row])) - 1);
  for (size_t i = 0; i < unknowns.size(); ++i)
    cost += square((unknowns[i] - problem_.prior[i]) / problem_.deviation[i]);
  return cost;
}

}  // namespace mtrain::predict
