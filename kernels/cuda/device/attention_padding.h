// Values whose size differs from that of keys, for kernels that take one size: the narrower
// operands are copied, and each head ends with zeros, which change no score and no output.
#pragma once
#include "kernels/attention.h"

namespace mtrain::kernels::cuda {

// Copies `heads` heads of `D` elements of each of `rows` tokens to heads of `to_D` elements. The
// elements that the source lacks become 0; those beyond to_D are left out.
void copy_heads(const HeadView& from, int64_t D, const HeadSpan& to, int64_t to_D, int64_t rows,
                int64_t heads, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
