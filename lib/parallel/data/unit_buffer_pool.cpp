#include "parallel/data/unit_buffer_pool.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace mtrain::parallel {

void UnitBufferPool::release(Slot& slot, Event last_use) {
  slot.held = false;
  slot.last_use = std::move(last_use);
  slot.released = ++releases_;
}

Tensor UnitBufferPool::allocate(const model::ParamUnit& unit, int64_t count, DType dtype) const {
  const Tensor given = memory_ ? memory_(unit, count, dtype) : Tensor();
  return given ? given : Tensor::empty(home_, {count}, dtype, category_);
}

Slot& UnitBufferPool::find(const model::ParamUnit& unit, size_t enough) {
  const Extent extent = extent_of(unit);
  size_t of_size = 0;
  Slot* oldest = nullptr;
  for (const auto& slot : slots_) {
    const DType dtype = slot->buffer ? slot->buffer.dtype() : extent.dtype;
    if (Extent{slot->buffer.count(), slot->quantized.count(), dtype} != extent) continue;
    ++of_size;
    if (!slot->held && (!oldest || slot->released < oldest->released)) oldest = slot.get();
  }
  const auto units = size_t(
      std::ranges::count(units_, extent, [&](const model::ParamUnit* u) { return extent_of(*u); }));
  if (oldest && of_size >= std::min(enough, units)) return *oldest;
  slots_.push_back(std::make_unique<Slot>());
  Slot& slot = *slots_.back();
  if (extent.plain > 0) {
    slot.buffer = allocate(unit, extent.plain, extent.dtype);
    ops::fill(home_, slot.buffer, 0);
  }
  if (extent.quantized > 0)
    slot.quantized = allocate(unit, extent.quantized, unit.sharding.quantized.value());
  slot.last_use = home_.record();
  return slot;
}

}  // namespace mtrain::parallel
