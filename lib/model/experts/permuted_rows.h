// The rows of a rank's choices in the order of their experts, for dispatchers.
#pragma once
#include "model/experts/token_dispatcher.h"
#include "ops/permute.h"

namespace mtrain::model {

// Returns the row of each choice, with its weight if weight_TK is present.
ExpertRows permuted_rows(Stream& stream, const ops::ExpertRows& order, const Tensor& x_TH,
                         const Tensor& weight_TK);
// Returns the sums over each token's rows in the order of k, and the weights of all choices.
TokenSums sums_of_rows(Stream& stream, const ops::ExpertRows& order, const ExpertRows& rows);

}  // namespace mtrain::model
