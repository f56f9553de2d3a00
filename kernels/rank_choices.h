// Computes the ranks to which each token is sent. A token is sent to a rank only once, however many
// of its K experts the rank has (as in DeepSeek's DeepEP). With P experts_per_rank, rank n of N has
// the experts [n P, (n + 1) P). Indices are int32, and no result depends on threads.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// rank[t, :] are the ranks of token t's experts in increasing order, each once, followed by -1.
// ExpertRows, given these ranks instead of experts, computes the rows that are sent to each rank.
struct RankChoices {
  ConstSpan expert_TK;  // a number outside of [0, N P) drops the choice
  Span rank_TM;         // M = min(K, N)
  Span count_2N;        // how many tokens go to each rank, then how many choices its experts get
  int64_t T, K, M, N, experts_per_rank;
};
// expert[r, k] is choice k of the row's token if the row's rank has that expert, else -1. A row
// whose choice_R is -1 has no experts.
struct ExpertsOfRows {
  ConstSpan expert_TK, rank_TM;
  ConstSpan choice_R;  // t M + m: the row is token t's, and is sent to rank[t, m]; -1: no row
  Span expert_RK;
  int64_t T, K, M, R, experts_per_rank;
};

namespace cpu {
void run(const RankChoices&);
void run(const ExpertsOfRows&);
}  // namespace cpu
namespace cuda {
void run(const RankChoices&, CUstream_st*);
void run(const ExpertsOfRows&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
