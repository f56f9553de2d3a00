#include "parallel/data/grad_reduce.h"

#include "ops/elementwise.h"

namespace mtrain::parallel {

namespace {
Tensor buffer(Stream& stream, int64_t count, DType dtype) {
  return Tensor::empty(stream, {count}, dtype, device::MemoryCategory::buffers);
}
}  // namespace

// Averages are over all ranks that read samples, but the group that reduces experts' gradients may
// have a different size. It has fewer ranks if a gradient already includes the samples of several
// such ranks. It has more if tp ranks have undivided experts: a gradient then includes only some
// tokens of one rank's samples.
void GradReduce::divide(const UnitGroups& of_unit, const Tensor& sum) const {
  const int ranks = of_unit.all.size(), samples = groups_.dense.all.size();
  if (options_.average && ranks != samples)
    ops::scale(*groups_.grad_stream, sum, float(ranks) / float(samples));
}

Tensor GradReduce::on_wire(const model::ParamUnit& unit, const Tensor& grad) const {
  return unit.in_fp32 ? grad
                      : ops::in_dtype(*groups_.grad_stream, grad, options_.dtype,
                                      device::MemoryCategory::buffers);
}

void GradReduce::all_reduce(const model::ParamUnit& unit, const Tensor& grad) const {
  Stream& stream = *groups_.grad_stream;
  const UnitGroups& of_unit = groups_.of(unit);
  divide(of_unit, grad);
  if (of_unit.all.size() == 1) return;  // nothing travels, so nothing is rounded
  const Tensor wire = on_wire(unit, grad);
  of_unit.all.all_reduce(wire, op(), stream);
  if (wire.dtype() != grad.dtype()) ops::cast(stream, wire, grad);
}

void GradReduce::reduce_scatter(const model::ParamUnit& unit, const Tensor& whole,
                                const Tensor& own, bool add) const {
  Stream& stream = *groups_.grad_stream;
  const UnitGroups& of_unit = groups_.of(unit);
  const Tensor wire = on_wire(unit, whole);
  const bool direct = wire.dtype() == own.dtype() && !add;
  const Tensor part = direct ? own : buffer(stream, own.count(), wire.dtype());
  of_unit.shards.reduce_scatter(wire, part, op(), stream);
  of_unit.replicas.all_reduce(part, op(), stream);
  divide(of_unit, part);
  if (direct) return;
  if (add)
    ops::add_into(stream, part, own);
  else
    ops::cast(stream, part, own);
}

}  // namespace mtrain::parallel
