// Memory for the full tensors of sharded units, which exist only temporarily: units take turns in a
// few slots. A slot is given to the next unit immediately; the stream, not the host, waits for its
// last use. The number of slots therefore bounds the memory, however far the host runs ahead.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/param/parameters.h"

namespace mtrain::parallel {

struct Slot {
  Tensor buffer;
  Tensor quantized;  // the elements that are gathered in 8 bits
  // The unit whose elements are in the slot. They stay after release() until the slot is reused.
  model::ParamUnit* holder = nullptr;
  bool held = false;      // whether the slot was taken and not released
  Event last_use;         // the next user of the slot must wait for it
  uint64_t released = 0;  // the number of its last release among the pool's releases
};

class UnitBufferPool {
 public:
  // Returns memory for elements of a slot for this unit; absent: the pool allocates it.
  using Memory = std::function<Tensor(const model::ParamUnit& unit, int64_t count, DType dtype)>;

  // Values in 8 bits have their own memory if `values`: slots are for values of units, not for
  // their gradients, which are fp32.
  UnitBufferPool(Stream& home, std::vector<model::ParamUnit*> units,
                 device::MemoryCategory category, bool values, Memory memory = {})
      : home_(home),
        units_(std::move(units)),
        category_(category),
        values_(values),
        memory_(std::move(memory)) {}

  // Returns a slot of the unit's size and type that is not held. Makes a new slot while there are
  // fewer than `enough` such slots and fewer than such units. Then takes the slot that was released
  // first, or makes a new one if all are held. `stream` waits for the slot's last use. `evicted` is
  // called with the unit whose elements were in it.
  template <class F>
  Slot& take(model::ParamUnit& unit, size_t enough, Stream& stream, const F& evicted) {
    Slot& slot = find(unit, enough);
    if (slot.holder) evicted(*slot.holder);
    stream.wait(slot.last_use);
    slot.holder = &unit;
    slot.held = true;
    return slot;
  }
  void release(Slot& slot, Event last_use);

  // The state of the slots, without their memory. Slots are neither added nor removed by it.
  struct State {
    struct Of {
      model::ParamUnit* holder;
      bool held;
      Event last_use;
      uint64_t released;
    };
    std::vector<Of> slots;
    uint64_t releases;
  };
  State state() const;
  // Events become `done`, if it is one.
  void set_state(const State& state, const Event& done);
  // Returns the slot's place among the slots; -1 for null.
  int64_t place_of(const Slot* slot) const;

 private:
  // The elements of a unit's slot, by type.
  struct Extent {
    int64_t plain = 0, quantized = 0;
    DType dtype = DType::f32;  // of the plain ones
    bool operator==(const Extent&) const = default;
  };
  Extent extent_of(const model::ParamUnit& unit) const {
    return values_
               ? Extent{unit.plain_count(), unit.quantized_count(), unit.params.front()->compute}
               : Extent{unit.trained_count};
  }
  Slot& find(const model::ParamUnit& unit, size_t enough);
  Tensor allocate(const model::ParamUnit& unit, int64_t count, DType dtype) const;

  Stream& home_;
  const std::vector<model::ParamUnit*> units_;
  const device::MemoryCategory category_;
  const bool values_;
  const Memory memory_;
  std::vector<std::unique_ptr<Slot>> slots_;
  uint64_t releases_ = 0;
};

}  // namespace mtrain::parallel
