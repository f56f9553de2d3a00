// Merges the attention of some queries over one block of keys into their attention over the earlier
// blocks:
//
//     lse' = log(e^lse + e^block_lse),  out' = e^(lse - lse') out + e^(block_lse - lse') block_out
//
// `out` and `lse` begin as the first block's result; the other blocks are merged into them. Queries
// that attend to no key of a block (lse -inf) stay unchanged.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct AttentionMerge {
  ConstSpan block_out_TN;  // (S * B, A * D), any float type
  ConstSpan block_lse;     // fp32 (B, A, S)
  Span out_TN;             // fp32
  Span lse;  // fp32; heads are lse_stride apart, since the rows may be part of a longer sequence
  int64_t B, S, A, D;
  int64_t lse_stride;  // >= S
};

namespace cpu {
void run(const AttentionMerge&);
}
namespace cuda {
void run(const AttentionMerge&, CUstream_st*);
}

}  // namespace mtrain::kernels
