// Tensor parallelism over several ranks, with sequence parallelism if `options.sequence`.
#pragma once
#include <memory>

#include "model/tensor_parallel.h"
#include "parallel/tensor/tensor_linear.h"

namespace mtrain::parallel {

std::shared_ptr<model::TensorParallel> tensor_parallel(TensorGroups groups,
                                                       TensorLinearOptions options);

}  // namespace mtrain::parallel
