// Column- and row-parallel linears (Shoeybi et al. 2019, "Megatron-LM").
#pragma once
#include <memory>

#include "model/linear.h"
#include "parallel/tensor/tensor_comm.h"
#include "parallel/tensor/tensor_overlap.h"

namespace mtrain {

struct TensorLinearOptions {
  bool sequence = false;  // what is not spread by columns is this rank's rows, else all of them
  TensorOverlap overlap;  // under `sequence`
};

// Outputs spread over ranks, or inputs.
std::unique_ptr<Linear> column_parallel(ParamStore& params, const LinearSpec& spec,
                                        const TensorComm& comm, const TensorLinearOptions& options);
std::unique_ptr<Linear> row_parallel(ParamStore& params, const LinearSpec& spec,
                                     const TensorComm& comm, const TensorLinearOptions& options);

}  // namespace mtrain
