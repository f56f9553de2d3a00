// Gradients of what several ranks of tensor parallelism hold copies of.
#pragma once
#include "model/parameters.h"
#include "parallel/tensor/tensor_comm.h"

namespace mtrain {

// Sums, over the ranks with a copy, the owned parts of gradients of which each has a part
// (Cut::partial_grad): one all-reduce per group of ranks, after the sums over samples. Ranks of
// the same place in data parallelism own the same parts.
void sum_copied_grads(ParamStore& params, const TensorComm& comm);

}  // namespace mtrain
