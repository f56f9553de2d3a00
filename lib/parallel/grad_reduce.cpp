#include "parallel/grad_reduce.h"

#include "ops/ops.h"

namespace mtrain {

namespace {
Tensor scratch(Stream& on, int64_t count, DType dtype) {
  return Tensor::empty(on, {count}, dtype, MemoryCategory::buffers);
}
}  // namespace

void GradReduce::all_reduce(const Tensor& grad) const {
  Stream& on = *groups_.grad_stream;
  const Tensor wire = ops::in_dtype(on, grad, options_.dtype, MemoryCategory::buffers);
  groups_.all.all_reduce(wire, op(), on);
  if (wire.dtype() != grad.dtype()) ops::cast(on, wire, grad);
}

void GradReduce::reduce_scatter(const Tensor& whole, const Tensor& own, bool add) const {
  Stream& on = *groups_.grad_stream;
  const Tensor wire = ops::in_dtype(on, whole, options_.dtype, MemoryCategory::buffers);
  const bool direct = wire.dtype() == own.dtype() && !add;
  const Tensor part = direct ? own : scratch(on, own.count(), wire.dtype());
  groups_.shards.reduce_scatter(wire, part, op(), on);
  groups_.replicas.all_reduce(part, op(), on);
  if (direct) return;
  if (add)
    ops::add_into(on, part, own);
  else
    ops::cast(on, part, own);
}

}  // namespace mtrain
