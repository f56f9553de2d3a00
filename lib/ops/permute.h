// Operations that copy tokens into the order of their experts, and back; kernels/permute.h has the
// rules. Each of T tokens chooses K of E experts, and the experts compute on the first R rows. A
// choice whose row is after these counts as dropped. kernels/rank_choices.h has the rules for ranks
// instead of experts.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

struct ExpertRows {  // int32
  Tensor count_E;    // number of rows of each of the E experts
  Tensor row_TK;     // (T, K): the choice's row; -1: dropped
  Tensor choice_R;   // (T K) or (E capacity): the row's choice, t K + k; -1: the row has none
  Tensor first_E1;   // expert e has the rows [first[e], first[e + 1])
};
// expert_TK is int32. The rows are those of the experts [begin, begin + E); choices of others are
// dropped. With a capacity above 0 every expert has `capacity` rows, and further choices are
// dropped.
ExpertRows expert_rows(Stream& stream, const Tensor& expert_TK, int64_t E, int64_t begin = 0,
                       int64_t capacity = 0);

struct RankChoices {  // int32
  Tensor rank_TM;     // the ranks of a token's experts in rising order, and -1 after the last one
  Tensor count_2N;    // (2, N): how many tokens go to each rank; how many choices its experts get
};
// Each of N ranks in turn has `experts_per_rank` experts, and M = min(K, N).
RankChoices rank_choices(Stream& stream, const Tensor& expert_TK, int64_t N,
                         int64_t experts_per_rank);
// Returns (R, K), int32: the experts of a row's token that the row's rank has, and -1 instead of
// others. choice_R is that of the rows that expert_rows() makes from rank_TM.
Tensor experts_of_rows(Stream& stream, const Tensor& expert_TK, const Tensor& rank_TM,
                       const Tensor& choice_R, int64_t experts_per_rank);

// Returns (R, H): the x of each row's token, times the weight of its choice (fp32, optional).
// choice_R is that of expert_rows(), or its first R elements. unpermute() with the same weights
// computes the gradient of x.
Tensor permute(Stream& stream, const Tensor& x_TH, const Tensor& choice_R, int64_t K,
               const Tensor& weight_TK = {});
// Returns (T, H): for each token the sum over its choices in their order, weighted by weight_TK
// (fp32, optional: 1). permute() with the same weights computes the gradient of x.
Tensor unpermute(Stream& stream, const Tensor& x_RH, const Tensor& row_TK,
                 const Tensor& weight_TK = {});
// Returns the gradient of the weights of unpermute(), (T, K) fp32.
Tensor unpermute_weight_grad(Stream& stream, const Tensor& dout_TH, const Tensor& x_RH,
                             const Tensor& row_TK);

}  // namespace mtrain::ops
