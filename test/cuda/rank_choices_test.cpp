#include "kernels/rank_choices.h"

#include <algorithm>

#include "kernels/permute.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

TEST_CASE("the ranks of tokens and the experts of their rows are the CPU's, number by number") {
  for (auto [T, K, N, each] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                               {37, 2, 4, 1},
                               {100, 3, 16, 2},
                               {300, 6, 2, 5},
                               {size_of_test(1100, 8192), 8, 8, size_of_test(4, 32)}})
    for_each_order([&] {
      CAPTURE(T, K, N, each);
      const int64_t M = std::min(K, N);
      std::vector<int32_t> numbers;
      for (int64_t i = 0; i < T * K; ++i)
        numbers.push_back(int32_t(uniform_below(7, i, N * each + 2)) - 1);
      Mirror expert(Array::ids(numbers)), rank(Array(DType::i32, T * M)),
          count(Array(DType::i32, 2 * N));
      RankChoices a{.expert_TK = expert.host(),
                    .rank_TM = rank.host(),
                    .count_2N = count.host(),
                    .T = T,
                    .K = K,
                    .M = M,
                    .N = N,
                    .experts_per_rank = each};
      cpu::run(a);
      a.expert_TK = expert.device(), a.rank_TM = rank.device(), a.count_2N = count.device();
      cuda::run(a, device_stream());
      REQUIRE((rank.same() && count.same()));

      Array rows(DType::i32, N), row(DType::i32, T * M), choices(DType::i32, T * M);
      cpu::run(ExpertRows{.expert_TK = rank.host(),
                          .count_E = rows,
                          .row_TK = row,
                          .choice_R = choices,
                          .T = T,
                          .K = M,
                          .E = N});
      Mirror choice(choices), experts(Array(DType::i32, T * M * K));
      ExpertsOfRows b{.expert_TK = expert.host(),
                      .rank_TM = rank.host(),
                      .choice_R = choice.host(),
                      .expert_RK = experts.host(),
                      .T = T,
                      .K = K,
                      .M = M,
                      .R = T * M,
                      .experts_per_rank = each};
      cpu::run(b);
      b.expert_TK = expert.device(), b.rank_TM = rank.device(), b.choice_R = choice.device();
      b.expert_RK = experts.device();
      cuda::run(b, device_stream());
      REQUIRE(experts.same());
    });
}
