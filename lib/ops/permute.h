// Operations that bring tokens into the order of their experts, and back; kernels/permute.h has the
// rules. Each of T tokens chooses K of E experts, and the experts compute on the first R rows. A
// choice whose row lies behind them counts as dropped.
#pragma once
#include "tensor/tensor.h"

namespace mtrain::ops {

struct ExpertRows {  // int32
  Tensor count_E;    // number of rows of each of the E experts
  Tensor row_TK;     // (T, K): the choice's row; -1: dropped
  Tensor choice_R;   // (T K): the row's choice, t K + k; -1 behind the last row
  Tensor first_E1;   // expert e has the rows [first[e], first[e + 1])
};
// expert_TK is int32. The rows are those of the experts [begin, begin + E); choices of others are
// dropped.
ExpertRows expert_rows(Stream& stream, const Tensor& expert_TK, int64_t E, int64_t begin = 0);

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
