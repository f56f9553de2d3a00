// The operands of grouped GEMMs, on the CPU and on the device. Those of 8 bits have scales.
#pragma once
#include <utility>
#include <vector>

#include "kernels/grouped_matmul.h"
#include "mirror.h"

namespace mtrain::test {

// GEMMs of experts' rows with the experts' weights.
class GroupedRows {
 public:
  // The first row of each expert, and of the rows after the last one, is in `first`.
  GroupedRows(Array a_RK, Array b_EKN, const std::vector<int32_t>& first, Array c_RN, int64_t N,
              int64_t K, bool trans_b, int64_t offset = 0)
      : c(std::move(c_RN), offset),
        a_(std::move(a_RK), offset),
        b_(std::move(b_EKN), offset),
        rows_(Array::ids(first)),
        N_(N),
        K_(K),
        E_(int64_t(first.size()) - 1),
        trans_b_(trans_b) {}

  kernels::GroupedMatmul host() {
    return args([](Mirror& m) { return m.host().span(); });
  }
  kernels::GroupedMatmul device() {
    return args([](Mirror& m) { return m.device(); });
  }

  Mirror c;

 private:
  template <class Of>
  kernels::GroupedMatmul args(const Of& of) {
    kernels::GroupedMatmul m{.a_RK = of(a_),
                             .b_EKN = of(b_),
                             .first_E1 = of(rows_),
                             .c_RN = of(c),
                             .R = c.host().size() / N_,
                             .N = N_,
                             .K = K_,
                             .E = E_,
                             .trans_b = trans_b_};
    if (is_float8(a_.host().dtype())) m.a_inverse = of(a_inverse_), m.b_inverse = of(b_inverse_);
    return m;
  }

  Mirror a_, b_, rows_, a_inverse_{Array::one(DType::f32, 0.25)},
      b_inverse_{Array::one(DType::f32, 3)};
  int64_t N_, K_, E_;
  bool trans_b_;
};

// Gradients of experts' weights.
class GroupedWeights {
 public:
  GroupedWeights(Array a_RM, Array b_RN, const std::vector<int32_t>& first, Array c_EMN, int64_t M,
                 int64_t N, bool accumulate, int64_t offset = 0)
      : c(std::move(c_EMN)),
        a_(std::move(a_RM), offset),
        b_(std::move(b_RN), offset),
        rows_(Array::ids(first)),
        M_(M),
        N_(N),
        E_(int64_t(first.size()) - 1),
        accumulate_(accumulate) {}

  kernels::GroupedWeightGrad host() {
    return args([](Mirror& m) { return m.host().span(); });
  }
  kernels::GroupedWeightGrad device() {
    return args([](Mirror& m) { return m.device(); });
  }

  Mirror c;

 private:
  template <class Of>
  kernels::GroupedWeightGrad args(const Of& of) {
    kernels::GroupedWeightGrad m{.a_RM = of(a_),
                                 .b_RN = of(b_),
                                 .first_E1 = of(rows_),
                                 .c_EMN = of(c),
                                 .R = a_.host().size() / M_,
                                 .M = M_,
                                 .N = N_,
                                 .E = E_,
                                 .accumulate = accumulate_};
    if (is_float8(a_.host().dtype())) m.a_inverse = of(a_inverse_), m.b_inverse = of(b_inverse_);
    return m;
  }

  Mirror a_, b_, rows_, a_inverse_{Array::one(DType::f32, 0.25)},
      b_inverse_{Array::one(DType::f32, 3)};
  int64_t M_, N_, E_;
  bool accumulate_;
};

}  // namespace mtrain::test
