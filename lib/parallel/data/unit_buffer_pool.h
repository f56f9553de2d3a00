// Memory that units take turns in: whole tensors of a sharded unit exist for a while only. A slot
// is taken again once the work that used it last is done; no host waits, and the number of slots
// bounds the memory however far the host runs ahead.
#pragma once
#include <memory>
#include <vector>

#include "model/param/parameters.h"

namespace mtrain::parallel {

struct Slot {
  Tensor buffer;
  model::ParamUnit* holder =
      nullptr;  // whose elements it has; they stay after release() until it is taken
  bool held = false;
  Event last_use;         // what a taker must wait for
  uint64_t released = 0;  // when, in the pool's counting
};

class UnitBufferPool {
 public:
  UnitBufferPool(Stream& home, std::vector<model::ParamUnit*> units, DType dtype,
                 device::MemoryCategory category)
      : home_(home), units_(std::move(units)), dtype_(dtype), category_(category) {}

  // A slot of the unit's size that nobody holds: a new one while there are fewer than `enough` and
  // than units of that size, then the one that was released first, and a new one again where all
  // are held. `on` waits for its last use. `evicted` is told of the unit whose elements were in it.
  template <class F>
  Slot& take(model::ParamUnit& unit, size_t enough, Stream& stream, const F& evicted) {
    Slot& slot = find(unit.count, enough);
    if (slot.holder) evicted(*slot.holder);
    stream.wait(slot.last_use);
    slot.holder = &unit;
    slot.held = true;
    return slot;
  }
  void release(Slot& slot, Event last_use);

 private:
  Slot& find(int64_t count, size_t enough);

  Stream& home_;
  const std::vector<model::ParamUnit*> units_;
  const DType dtype_;
  const device::MemoryCategory category_;
  std::vector<std::unique_ptr<Slot>> slots_;
  uint64_t releases_ = 0;
};

}  // namespace mtrain::parallel
