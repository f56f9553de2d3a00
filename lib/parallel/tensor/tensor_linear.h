// Column- and row-parallel linears (Shoeybi et al. 2019, "Megatron-LM").
#pragma once
#include <memory>

#include "model/linear.h"
#include "parallel/tensor/tensor_comm.h"

namespace mtrain {

// Outputs spread over ranks. `sequence`: inputs are this rank's rows, else all of them.
std::unique_ptr<Linear> column_parallel(ParamStore& params, const LinearSpec& spec,
                                        const TensorComm& comm, bool sequence);
// Inputs spread over ranks. `sequence`: outputs are this rank's rows, else all of them.
std::unique_ptr<Linear> row_parallel(ParamStore& params, const LinearSpec& spec,
                                     const TensorComm& comm, bool sequence);

}  // namespace mtrain
