#include "kernels/rank_choices.h"

#include <algorithm>

#include "kernels/cpu/check.h"

namespace mtrain::kernels::cpu {

// Like run(ExpertRows), these read a few numbers for each choice: one thread finishes before other
// threads would wake up.
void run(const RankChoices& a) {
  check("rank choices", "expert", a.expert_TK, a.T * a.K, DType::i32);
  check("rank choices", "rank", a.rank_TM, a.T * a.M, DType::i32);
  check("rank choices", "count", a.count_2N, 2 * a.N, DType::i32);
  MT_CHECK(a.M == std::min(a.K, a.N), "rank choices: {} ranks of {} for {} experts", a.M, a.N, a.K);
  const auto* expert = a.expert_TK.as<int32_t>();
  auto* rank = a.rank_TM.as<int32_t>();
  auto *const tokens = a.count_2N.as<int32_t>(), *const choices = tokens + a.N;
  std::fill_n(tokens, 2 * a.N, 0);
  for (int64_t t = 0; t < a.T; ++t, expert += a.K, rank += a.M) {
    int32_t* end = rank;  // the end of the ranks that are already in the list, which is sorted
    for (int64_t k = 0; k < a.K; ++k) {
      if (expert[k] < 0 || expert[k] >= a.N * a.experts_per_rank) continue;
      const auto of_choice = int32_t(expert[k] / a.experts_per_rank);
      ++choices[of_choice];
      int32_t* const at = std::lower_bound(rank, end, of_choice);
      if (at != end && *at == of_choice) continue;
      std::copy_backward(at, end, end + 1);
      *at = of_choice;
      ++end;
      ++tokens[of_choice];
    }
    std::fill(end, rank + a.M, -1);
  }
}

void run(const ExpertsOfRows& a) {
  check("experts of rows", "expert", a.expert_TK, a.T * a.K, DType::i32);
  check("experts of rows", "rank", a.rank_TM, a.T * a.M, DType::i32);
  check_indices("experts of rows", "choice", a.choice_R, a.R, a.T * a.M, -1);
  check("experts of rows", "experts", a.expert_RK, a.R * a.K, DType::i32);
  const auto *expert = a.expert_TK.as<int32_t>(), *rank = a.rank_TM.as<int32_t>(),
             *choice = a.choice_R.as<int32_t>();
  auto* out = a.expert_RK.as<int32_t>();
  for (int64_t r = 0; r < a.R; ++r, out += a.K) {
    const int64_t to = choice[r] < 0 ? -1 : rank[choice[r]];
    for (int64_t k = 0; k < a.K; ++k) {
      const int32_t e = to < 0 ? -1 : expert[choice[r] / a.M * a.K + k];
      out[k] = e >= 0 && e / a.experts_per_rank == to ? e : -1;
    }
  }
}

}  // namespace mtrain::kernels::cpu
