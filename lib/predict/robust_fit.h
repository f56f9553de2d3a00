// Robust least squares with a prior for each unknown, for models that a few dozen rows judge.
#pragma once
#include <functional>
#include <vector>

namespace mtrain::predict {

using FitVector = std::vector<double>;

struct RobustProblem {
  // The unknowns are expected at `prior`, with these standard deviations.
  FitVector prior, deviation;
  // Returns (predicted - measured) / expected error of each row. Unknowns are in the prior's order.
  std::function<FitVector(const FitVector&)> residuals;
};

// Minimizes the sum of weight x soft L1 of the residuals and of the squared distances from the
// prior: 2 (sqrt(1 + r^2) - 1), which grows like |r| for rows that are far off. A weight of 0
// leaves a row out.
class RobustFit {
 public:
  // Fits to all rows.
  RobustFit(RobustProblem problem, FitVector weights);

  const FitVector& unknowns() const { return at_.unknowns; }
  double cost() const { return cost_; }
  // Returns the unknowns of a fit with other weights. It begins at those of all rows and keeps
  // their derivatives, so it takes three evaluations of the rows.
  FitVector refit(const FitVector& weights) const;

 private:
  struct Linear {
    FitVector unknowns, residuals;
    std::vector<FitVector> derivatives;  // [unknown][row]
  };
  Linear linear_at(const FitVector& unknowns) const;
  FitVector minimum_of(const Linear& linear, const FitVector& weights) const;
  double cost_of(const FitVector& unknowns, const FitVector& residuals,
                 const FitVector& weights) const;

  const RobustProblem problem_;
  Linear at_;
  double cost_ = 0;
};

// Solves a x = b for a symmetric positive definite matrix, by Cholesky's method.
FitVector solve_positive(std::vector<FitVector> a, FitVector b);

}  // namespace mtrain::predict
