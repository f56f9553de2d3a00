// The current GPU as measurements of GEMMs see it.
#pragma once
#include "kernels/cuda/gemm/gemm_api.h"

namespace mtrain::kernels::cuda {

const GemmDevice& current_gpu();  // defined in kernels/cuda/matmul.cpp

}  // namespace mtrain::kernels::cuda
