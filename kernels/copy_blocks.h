// Copies rectangles between two matrices: sequence chunks into another order, heads into parts by
// destination and back.
#pragma once
#include <vector>

#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct CopyBlock {
  int64_t from_row, from_column, to_row, to_column, rows, columns;
};

struct CopyBlocks {
  ConstSpan from;
  Span to;                        // of from's dtype; must not overlap it
  int64_t from_width, to_width;   // columns of the two matrices
  std::vector<CopyBlock> blocks;  // no element is written twice
};

namespace cpu {
void run(const CopyBlocks&);
}
namespace cuda {
void run(const CopyBlocks&, CUstream_st*);
}

}  // namespace mtrain::kernels
