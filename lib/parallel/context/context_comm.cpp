#include "parallel/context/context_comm.h"

#include "device/device.h"

namespace mtrain::parallel {

Tensor ContextComm::named_buffer(Stream& compute, ContextBufferKey key, const Shape& shape,
                                 DType dtype) {
  Tensor& whole = buffers_[{key, dtype}];
  if (whole.count() < shape.count()) {
    // It stays, so it must not use memory that graphs write to.
    const device::Allocator::Open outside(compute.device().allocator());
    whole = Tensor::empty(compute, {shape.count()}, dtype, device::MemoryCategory::buffers);
  }
  return whole.flat(0, shape);
}

}  // namespace mtrain::parallel
