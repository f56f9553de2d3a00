#include "model/experts/permuted_rows.h"

namespace mtrain::model {

// A choice's weight is a row of one column, and each choice a token of its own.
ExpertRows permuted_rows(Stream& stream, const ops::ExpertRows& order, const Tensor& x_TH,
                         const Tensor& weight_TK) {
  const int64_t K = order.row_TK.dim(1), choices = order.row_TK.count(), R = order.choice_R.count();
  ExpertRows rows{.x_RH = ops::permute(stream, x_TH, order.choice_R, K)};
  if (weight_TK)
    rows.weight_R = ops::permute(stream, weight_TK.view({choices, 1}), order.choice_R, 1).view({R});
  return rows;
}

TokenSums sums_of_rows(Stream& stream, const ops::ExpertRows& order, const ExpertRows& rows) {
  const Tensor& row_TK = order.row_TK;
  const int64_t choices = row_TK.count(), R = rows.x_RH.dim(0);
  TokenSums sums{.sum_TH = ops::unpermute(stream, rows.x_RH, row_TK), .weight_TK = {}};
  if (rows.weight_R)
    sums.weight_TK = ops::unpermute(stream, rows.weight_R.view({R, 1}), row_TK.view({choices, 1}))
                         .view(row_TK.shape());
  return sums;
}

}  // namespace mtrain::model
