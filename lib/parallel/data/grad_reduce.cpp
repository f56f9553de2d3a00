#include "parallel/data/grad_reduce.h"

#include "ops/ops.h"

namespace mtrain::parallel {

namespace {
Tensor buffer(Stream& stream, int64_t count, DType dtype) {
  return Tensor::empty(stream, {count}, dtype, device::MemoryCategory::buffers);
}
}  // namespace

void GradReduce::all_reduce(const Tensor& grad) const {
  Stream& stream = *groups_.grad_stream;
  const Tensor wire = ops::in_dtype(stream, grad, options_.dtype, device::MemoryCategory::buffers);
  groups_.all.all_reduce(wire, op(), stream);
  if (wire.dtype() != grad.dtype()) ops::cast(stream, wire, grad);
}

void GradReduce::reduce_scatter(const Tensor& whole, const Tensor& own, bool add) const {
  Stream& stream = *groups_.grad_stream;
  const Tensor wire = ops::in_dtype(stream, whole, options_.dtype, device::MemoryCategory::buffers);
  const bool direct = wire.dtype() == own.dtype() && !add;
  const Tensor part = direct ? own : buffer(stream, own.count(), wire.dtype());
  groups_.shards.reduce_scatter(wire, part, op(), stream);
  groups_.replicas.all_reduce(part, op(), stream);
  if (direct) return;
  if (add)
    ops::add_into(stream, part, own);
  else
    ops::cast(stream, part, own);
}

}  // namespace mtrain::parallel
