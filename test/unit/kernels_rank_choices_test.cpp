#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "kernels/permute.h"
#include "kernels/rank_choices.h"
#include "test/support/kernels_testing.h"

namespace kernels_rank_choices_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

std::vector<int32_t> numbers(const Array& a) {
  const auto* p = a.span().as<int32_t>();
  return {p, p + a.size()};
}

struct Ranks {
  Array rank_TM, count_2N;
};
Ranks ranks_of(const std::vector<int32_t>& expert, int64_t T, int64_t K, int64_t N, int64_t each) {
  const int64_t M = std::min(K, N);
  Ranks made{Array(DType::i32, T * M), Array(DType::i32, 2 * N)};
  cpu::run(RankChoices{.expert_TK = Array::ids(expert),
                       .rank_TM = made.rank_TM,
                       .count_2N = made.count_2N,
                       .T = T,
                       .K = K,
                       .M = M,
                       .N = N,
                       .experts_per_rank = each});
  return made;
}

}  // namespace

TEST_CASE("a token goes once to each rank that has some of its experts, in the order of ranks") {
  // Three ranks of two experts; tokens with three choices each, some of them dropped.
  const std::vector<int32_t> expert{5, 0, 4, 3, 2, 3, -1, 6, 1, -1, -1, -1, 4, 2, 0};
  const Ranks to = ranks_of(expert, 5, 3, 3, 2);
  CHECK(numbers(to.rank_TM) ==
        std::vector<int32_t>{0, 2, -1, 1, -1, -1, 0, -1, -1, -1, -1, -1, 0, 1, 2});
  CHECK(numbers(to.count_2N) == std::vector<int32_t>{3, 2, 2, 3, 4, 3});
  // Row 6 goes to no rank; the others go to ranks 0, 1 and 2.
  Array rows(DType::i32, 8 * 3);
  cpu::run(ExpertsOfRows{.expert_TK = Array::ids(expert),
                         .rank_TM = to.rank_TM,
                         .choice_R = Array::ids({0, 6, 12, 3, 13, 1, -1, 14}),
                         .expert_RK = rows,
                         .T = 5,
                         .K = 3,
                         .M = 3,
                         .R = 8,
                         .experts_per_rank = 2});
  CHECK(numbers(rows) == std::vector<int32_t>{-1, 0, -1, -1, -1, 1, -1, -1, 0,  3, 2,  3,
                                              -1, 2, -1, 5,  -1, 4, -1, -1, -1, 4, -1, -1});
}

TEST_CASE("the ranks of many tokens are those of their experts, and their rows have all choices") {
  for (auto [T, K, N, each] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                               {37, 2, 4, 1},
                               {300, 8, 8, 4},
                               {100, 3, 16, 2},
                               {50, 6, 2, 5}}) {
    CAPTURE(T, K, N, each);
    const int64_t M = std::min(K, N), E = N * each;
    std::vector<int32_t> expert(static_cast<size_t>(T * K));
    for (int64_t i = 0; i < T * K; ++i) expert[i] = int32_t(uniform_below(7, i, E + 1)) - 1;
    const Ranks to = ranks_of(expert, T, K, N, each);
    const auto rank = numbers(to.rank_TM);
    std::vector<int32_t> count(static_cast<size_t>(2 * N));
    for (int64_t t = 0; t < T; ++t) {
      std::set<int32_t> want;
      for (int64_t k = 0; k < K; ++k)
        if (const int32_t e = expert[t * K + k]; e >= 0) {
          want.insert(int32_t(e / each));
          ++count[N + e / each];
        }
      for (const int32_t r : want) ++count[r];
      std::vector<int32_t> listed(want.begin(), want.end());
      listed.resize(size_t(M), -1);
      REQUIRE((std::vector<int32_t>(rank.begin() + t * M, rank.begin() + (t + 1) * M) == listed));
    }
    REQUIRE(numbers(to.count_2N) == count);

    // A choice is in the one row that brings its token to the rank of its expert.
    Array rows_of(DType::i32, N), row(DType::i32, T * M), choice(DType::i32, T * M),
        experts(DType::i32, T * M * K);
    cpu::run(ExpertRows{.expert_TK = to.rank_TM,
                        .count_E = rows_of,
                        .row_TK = row,
                        .choice_R = choice,
                        .T = T,
                        .K = M,
                        .E = N});
    REQUIRE((numbers(rows_of) == std::vector<int32_t>(count.begin(), count.begin() + N)));
    cpu::run(ExpertsOfRows{.expert_TK = Array::ids(expert),
                           .rank_TM = to.rank_TM,
                           .choice_R = choice,
                           .expert_RK = experts,
                           .T = T,
                           .K = K,
                           .M = M,
                           .R = T * M,
                           .experts_per_rank = each});
    std::vector<int32_t> found(static_cast<size_t>(T * K), -1);
    const auto choices = numbers(choice), of_rows = numbers(experts);
    for (int64_t r = 0; r < T * M; ++r)
      for (int64_t k = 0; k < K; ++k)
        if (const int32_t e = of_rows[r * K + k]; e >= 0) {
          const int64_t t = choices[r] / M;
          REQUIRE(e / each == rank[choices[r]]);
          REQUIRE(found[t * K + k] == -1);
          found[t * K + k] = e;
        }
    REQUIRE(found == expert);
    REQUIRE((to.rank_TM.margin_untouched() && to.count_2N.margin_untouched() &&
             experts.margin_untouched()));
  }
}

}  // namespace kernels_rank_choices_test
