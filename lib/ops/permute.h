// Tokens in the order of their experts, and back: kernels/permute.h. T tokens choose K of E experts
// each; R rows are those that experts compute on. Choices of rows behind them count as dropped.
#pragma once
#include "tensor/tensor.h"

namespace mtrain::ops {

struct ExpertRows {  // int32
  Tensor count_E;    // rows of each expert, in turn
  Tensor row_TK;     // (T, K): the choice's row; -1: dropped
  Tensor choice_R;   // (T K): the row's choice, t K + k; -1 behind the last row
};
// expert_TK: int32; a choice outside of [0, E) is dropped.
ExpertRows expert_rows(Stream& on, const Tensor& expert_TK, int64_t E);

// (R, H): x of each row's token, times its choice's weight (fp32, optional). choice_R: expert_rows'
// or its first R. The gradient is unpermute's with the same weights.
Tensor permute(Stream& on, const Tensor& x_TH, const Tensor& choice_R, int64_t K,
               const Tensor& weight_TK = {});
// (T, H): the weighted sum over each token's choices (fp32, optional: 1), in turn. The gradient of
// x is permute's with the same weights.
Tensor unpermute(Stream& on, const Tensor& x_RH, const Tensor& row_TK,
                 const Tensor& weight_TK = {});
// (T, K) fp32: unpermute's gradient of the weights.
Tensor unpermute_weight_grad(Stream& on, const Tensor& dout_TH, const Tensor& x_RH,
                             const Tensor& row_TK);

}  // namespace mtrain::ops
