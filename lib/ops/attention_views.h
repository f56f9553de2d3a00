// What the operations on attention share: its kernels, and views of single heads.
#pragma once
#include "kernels/attention.h"
#include "ops/enqueue.h"
#include "tensor/tensor.h"

MT_KERNEL(AttentionForward)
MT_KERNEL(AttentionBackward)

namespace mtrain::ops {

// Returns the elements of a (rows, heads * D) tensor, starting at head `head` of the first row.
inline Span heads_from(const Tensor& x_RN, int64_t head, int64_t D) {
  return elements_from(x_RN, head * D);
}

}  // namespace mtrain::ops
