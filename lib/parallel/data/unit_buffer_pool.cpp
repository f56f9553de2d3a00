#include "parallel/data/unit_buffer_pool.h"

#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "ops/elementwise.h"

namespace mtrain::parallel {

void UnitBufferPool::release(Slot& slot, Event last_use) {
  slot.held = false;
  slot.last_use = std::move(last_use);
  slot.released = ++releases_;
}

UnitBufferPool::State UnitBufferPool::state() const {
  State all{.slots = {}, .releases = releases_};
  for (const auto& s : slots_) all.slots.push_back({s->holder, s->held, s->last_use, s->released});
  return all;
}

void UnitBufferPool::set_state(const State& state, const Event& done) {
  MT_CHECK(state.slots.size() == slots_.size(), "{} slots have a state of {}", slots_.size(),
           state.slots.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    const State::Of& s = state.slots[i];
    slots_[i]->holder = s.holder;
    slots_[i]->held = s.held;
    slots_[i]->last_use = done ? done : s.last_use;
    slots_[i]->released = s.released;
  }
  releases_ = state.releases;
}

int64_t UnitBufferPool::place_of(const Slot* slot) const {
  const auto at = std::ranges::find(slots_, slot, &std::unique_ptr<Slot>::get);
  return at == slots_.end() ? -1 : at - slots_.begin();
}

Tensor UnitBufferPool::allocate(const model::ParamUnit& unit, int64_t count, DType dtype) const {
  // Slots outlive the micro-batch, whose other memory may be that of graphs.
  const device::Allocator::Open outside(home_.device().allocator());
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
