// Copies rows between buffers whose rows are at different distances, or adds to them.
#pragma once
#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace mtrain::kernels::cuda {

struct SpreadRows {
  const void* from;
  void* to;
  DType from_type, to_type;        // fp32, bf16 or fp16, but not one of each of the latter
  int64_t from_stride, to_stride;  // elements from one row to the next
  int64_t rows, columns;
  bool add = false;  // adds to the rows, instead of overwriting them
};

void run(const SpreadRows& s, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
