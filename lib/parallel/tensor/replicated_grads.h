// Gradients of parameters of which several ranks of tensor parallelism hold copies.
#pragma once
#include "model/param/parameters.h"
#include "parallel/tensor/tensor_comm.h"

namespace mtrain::parallel {

// Sums a gradient over the ranks that hold a copy of its parameter, where each rank has computed a
// part of it (Cut::partial_grad). Each rank sums what it owns; ranks at the same place in data
// parallelism own the same elements. Makes one all-reduce per group of ranks; to be called after
// the sums over samples.
void sum_copied_grads(model::ParamStore& params, const TensorComm& comm);

}  // namespace mtrain::parallel
