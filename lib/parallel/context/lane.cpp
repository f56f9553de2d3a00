#include "parallel/context/lane.h"

namespace mtrain {

Tensor ContextLane::memory(Stream& compute, std::string_view name, Shape shape, DType dtype) {
  Tensor& whole = memory_[{name, dtype}];
  if (whole.count() < shape.count())
    whole = Tensor::empty(compute, {shape.count()}, dtype, MemoryCategory::buffers);
  return whole.flat(0, shape);
}

}  // namespace mtrain
