// Sums of columns over rows, in an order that depends only on the sizes: slices of the rows first,
// then the slices' sums.
#pragma once
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

// Adds partials[0][i] + partials[1][i] + ... to out[i] for i < width. A row of partials has
// `stride` floats.
void add_partials(const float* partials, int64_t rows, int64_t stride, int64_t width, float* out,
                  CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
