#include "parallel/data/unit_buffer_pool.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace mtrain::parallel {

void UnitBufferPool::release(Slot& slot, Event last_use) {
  slot.held = false;
  slot.last_use = std::move(last_use);
  slot.released = ++releases_;
}

Slot& UnitBufferPool::find(int64_t count, DType dtype, size_t enough) {
  size_t of_size = 0;
  Slot* oldest = nullptr;
  for (const auto& slot : slots_) {
    if (slot->buffer.count() != count || slot->buffer.dtype() != dtype) continue;
    ++of_size;
    if (!slot->held && (!oldest || slot->released < oldest->released)) oldest = slot.get();
  }
  const auto units = size_t(std::ranges::count(units_, count, &model::ParamUnit::count));
  if (oldest && of_size >= std::min(enough, units)) return *oldest;
  slots_.push_back(std::make_unique<Slot>());
  Slot& slot = *slots_.back();
  slot.buffer = Tensor::empty(home_, {count}, dtype, category_);
  ops::fill(home_, slot.buffer, 0);
  slot.last_use = home_.record();
  return slot;
}

}  // namespace mtrain::parallel
