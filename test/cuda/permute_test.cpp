#include "kernels/permute.h"

#include <cmath>

#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

Array random_experts(int64_t choices, int64_t E) {
  std::vector<int32_t> expert;
  for (int64_t i = 0; i < choices; ++i) expert.push_back(int32_t(uniform_below(7, i, E + 1)) - 1);
  return Array::ids(expert);
}

}  // namespace

TEST_CASE("the rows of experts are the CPU's, number by number") {
  for (auto [T, K, E] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                         {0, 2, 3},
                         {37, 2, 4},
                         {1500, 3, 5},
                         {size_of_test(260, 8192), 8, size_of_test(20, 1100)}})
    for (const auto& [begin, capacity] :
         {std::pair{int64_t(0), int64_t(0)}, {E / 2, 0}, {0, T * K / E + 1}, {E / 2, 2 * T + 1}})
      for_each_order([&, begin = begin, capacity = capacity] {
        CAPTURE(T, K, E, begin, capacity);
        const int64_t rows = capacity > 0 ? (E - begin) * capacity : T * K;
        Mirror expert(random_experts(T * K, E)), count(Array(DType::i32, E)),
            row(Array(DType::i32, T * K)), choice(Array(DType::i32, rows)),
            first(Array(DType::i32, E + 1));
        ExpertRows a{.expert_TK = expert.host(),
                     .count_E = count.host(),
                     .row_TK = row.host(),
                     .choice_R = choice.host(),
                     .T = T,
                     .K = K,
                     .E = E - begin,
                     .first_E1 = first.host(),
                     .begin = begin,
                     .capacity = capacity};
        cpu::run(a);
        a.expert_TK = expert.device(), a.count_E = count.device(), a.row_TK = row.device();
        a.choice_R = choice.device(), a.first_E1 = first.device();
        cuda::run(a, device_stream());
        REQUIRE((count.same() && row.same() && choice.same() && first.same()));
      });
}

TEST_CASE("permute, unpermute and its weights' gradient equal the CPU's") {
  Closeness close("permute and unpermute");
  for (auto [T, K, E, H] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                            {37, 2, 4, 33},
                            {9, 8, 6, 1040},
                            {size_of_test(60, 4096), 6, 16, 256}})
    for (DType type : kFloats)
      for (bool weighted : {false, true})
        for_each_way([&](int64_t offset) {
          CAPTURE(T, K, E, H, type, weighted);
          const int64_t all = T * K, R = (all + 1) / 2;  // other rows are left out
          Array count(DType::i32, E), row(DType::i32, all), choice(DType::i32, all);
          cpu::run(ExpertRows{.expert_TK = random_experts(all, E),
                              .count_E = count,
                              .row_TK = row,
                              .choice_R = choice,
                              .T = T,
                              .K = K,
                              .E = E});
          Mirror to_row(row), to_choice(choice);
          Mirror x(Array::normal(type, T * H, 1), offset), y(Array::normal(type, R * H, 2), offset),
              weight(Array::normal(DType::f32, all, 3)), rows(Array(type, R * H), offset),
              tokens(Array(type, T * H), offset), dweight(Array(DType::f32, all));
          Permute there{.x_TH = x.host(),
                        .choice_R = to_choice.host(),
                        .out_RH = rows.host(),
                        .T = T,
                        .K = K,
                        .R = R,
                        .H = H};
          Unpermute back{.x_RH = y.host(),
                         .row_TK = to_row.host(),
                         .out_TH = tokens.host(),
                         .T = T,
                         .K = K,
                         .R = R,
                         .H = H};
          UnpermuteWeightGrad grad{.dout_TH = x.host(),
                                   .x_RH = y.host(),
                                   .row_TK = to_row.host(),
                                   .dweight_TK = dweight.host(),
                                   .T = T,
                                   .K = K,
                                   .R = R,
                                   .H = H};
          if (weighted) there.weight_TK = back.weight_TK = weight.host();
          cpu::run(there);
          cpu::run(back);
          cpu::run(grad);
          there.x_TH = grad.dout_TH = x.device(), back.x_RH = grad.x_RH = y.device();
          there.choice_R = to_choice.device(), back.row_TK = grad.row_TK = to_row.device();
          there.out_RH = rows.device(), back.out_TH = tokens.device();
          grad.dweight_TK = dweight.device();
          if (weighted) there.weight_TK = back.weight_TK = weight.device();
          cuda::run(there, device_stream());
          cuda::run(back, device_stream());
          cuda::run(grad, device_stream());
          REQUIRE(rows.same());
          REQUIRE(tokens.compare(close,
                                 {.dtype = type, .K = double(K), .scale = 4, .sums = DType::f32}) ==
                  "");
          // A dot product of H normal numbers: its running sum stays below four deviations, 4
          // sqrt(H), and every addition rounds at that size.
          REQUIRE(dweight.compare(close, {.K = double(H), .scale = 4 * std::sqrt(double(H))}) ==
                  "");
        });
}
