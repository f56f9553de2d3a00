#include "parallel/context/context_comm.h"

namespace mtrain::parallel {

Tensor ContextComm::named_buffer(Stream& compute, ContextBufferKey key, const Shape& shape,
                                 DType dtype) {
  Tensor& whole = buffers_[{key, dtype}];
  if (whole.count() < shape.count())
    whole = Tensor::empty(compute, {shape.count()}, dtype, device::MemoryCategory::buffers);
  return whole.flat(0, shape);
}

}  // namespace mtrain::parallel
