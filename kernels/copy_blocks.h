// Copies rectangles from one matrix to another. Context parallelism uses it to reorder the chunks
// of a sequence, and to group heads by their destination rank and back.
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
  Span to;                        // has from's dtype and must not overlap it
  int64_t from_width, to_width;   // columns of the two matrices
  std::vector<CopyBlock> blocks;  // no two of them may write the same element
};

namespace cpu {
void run(const CopyBlocks&);
}
namespace cuda {
void run(const CopyBlocks&, CUstream_st*);
}

}  // namespace mtrain::kernels
