// Gradients of parameters that tensor parallelism replicates on several ranks.
#pragma once
#include "model/param/parameters.h"
#include "parallel/tensor/tensor_comm.h"

namespace mtrain::parallel {

// Sums a gradient over the ranks that hold its parameter, if each of them has computed a part of it
// (ShardSpec::partial_grad). Each rank sums the elements that it owns in data parallelism; ranks of
// one tp group own the same elements. Makes one all-reduce per group of ranks. Call it after
// DataParallel::finish_grads().
void sum_replicated_grads(model::ParamStore& params, const TensorComm& comm);

}  // namespace mtrain::parallel
