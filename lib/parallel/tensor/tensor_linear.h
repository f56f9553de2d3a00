// Column- and row-parallel linears (Shoeybi et al. 2019, "Megatron-LM").
#pragma once
#include <memory>

#include "model/linear.h"
#include "parallel/tensor/tensor_comm.h"
#include "plan/gemm_overlap.h"

namespace mtrain::parallel {

struct TensorLinearOptions {
  // Sequence parallelism: a rank has only its own rows of activations that are not split by
  // columns.
  bool sequence = false;
  plan::TpGemmOverlap overlap;       // has an effect only under `sequence`
  int64_t float8_rows_multiple = 1;  // that of plan::Fp8Options
};

// A column-parallel linear splits its outputs over ranks, a row-parallel one its inputs. Their
// shapes are listed in model/linear.h.
std::unique_ptr<model::Linear> column_parallel(model::ParamStore& params,
                                               const model::LinearSpec& spec,
                                               const TensorComm& comm,
                                               const TensorLinearOptions& options);
std::unique_ptr<model::Linear> row_parallel(model::ParamStore& params,
                                            const model::LinearSpec& spec, const TensorComm& comm,
                                            const TensorLinearOptions& options);

}  // namespace mtrain::parallel
