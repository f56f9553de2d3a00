#include "kernels/grouped_matmul.h"

#include <cmath>

#include "mirror.h"

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
              Mirror a(Array::normal(type, R * s.K, 1), offset),
                  b(Array::normal(type, E * s.K * s.N, 2), offset), rows(Array::ids(first)),
                  c(Array::normal(out, R * s.N, 3), offset);
              GroupedMatmul m{.a_RK = a.host(),
                              .b_EKN = b.host(),
                              .first_E1 = rows.host(),
                              .c_RN = c.host(),
                              .R = R,
                              .N = s.N,
                              .K = s.K,
                              .E = E,
                              .trans_b = trans};
              cpu::run(m);
              m.a_RK = a.device(), m.b_EKN = b.device(), m.first_E1 = rows.device();
              m.c_RN = c.device();
              cuda::run(m, device_stream());
              REQUIRE(c.compare(close, rule(out, s.K)) == "");
            });
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
            Mirror a(Array::normal(type, R * s.K, 1), offset),
                b(Array::normal(type, R * s.N, 2), offset), rows(Array::ids(first)),
                c(Array::normal(DType::f32, E * s.K * s.N, 3));
            GroupedWeightGrad m{.a_RM = a.host(),
                                .b_RN = b.host(),
                                .first_E1 = rows.host(),
                                .c_EMN = c.host(),
                                .R = R,
                                .M = s.K,
                                .N = s.N,
                                .E = E,
                                .accumulate = accumulate};
            cpu::run(m);
            m.a_RM = a.device(), m.b_RN = b.device(), m.first_E1 = rows.device();
            m.c_EMN = c.device();
            cuda::run(m, device_stream());
            REQUIRE(c.compare(close, rule(DType::f32, R)) == "");
          });
}
