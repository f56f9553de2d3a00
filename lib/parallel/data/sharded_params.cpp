#include <algorithm>
#include <utility>

#include "base/error.h"
#include "parallel/data/param_sync.h"
#include "parallel/data/registered_memory.h"
#include "parallel/data/unit_buffer_pool.h"
#include "parallel/data/unit_gather.h"

namespace mtrain::parallel {

namespace {

class ShardedParams : public ParamSync {
 public:
  ShardedParams(model::ParamStore& params, const DataGroups& groups,
                const plan::ShardedParamsOptions& options, model::Quantizer* quantizer)
      : groups_(groups),
        options_(options),
        gather_(groups, quantizer, /*in_place=*/options.symmetric),
        slots_(*groups.param_stream, params.units(), device::MemoryCategory::buffers,
               /*values=*/true, memory_of_slots()) {
    for (model::ParamUnit* unit : params.units()) {
      if (!unit->sharding.values) continue;  // its values always exist
      states_.push_back({unit});
    }
    order_backward();
  }

  void before_forward(model::ParamUnit& unit) override {
    use(unit, options_.forward_prefetch, &State::next_in_forward);
  }
  void after_forward(model::ParamUnit& unit) override {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    const bool reshard = unit.id.kind == model::UnitKind::experts ? options_.reshard_experts
                                                                  : options_.reshard_after_forward;
    if (--state.uses == 0 && reshard) release(state);
  }
  void before_recompute(model::ParamUnit& unit, model::ParamUnit* next) override {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    ++state.uses;
    gather(state);
    if (next && next->sharding.values && options_.backward_prefetch > 0 && !state.pins)
      gather(state_of(*next));
    groups_.compute->wait(state.gathered);  // edge: the unit's gather -> what reads it
  }
  void before_backward(model::ParamUnit& unit) override {
    use(unit, options_.backward_prefetch, &State::next_in_backward);
  }
  void after_backward(model::ParamUnit& unit) override {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    if (--state.uses == 0) release(state);
  }

  void pin(model::ParamUnit& unit) override {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    ++state.pins;
    ++state.uses;
    gather(state);
  }
  void unpin(model::ParamUnit& unit) override {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    --state.pins;
    if (--state.uses == 0) release(state);
  }

  void updated(model::ParamUnit& unit) override {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    state.updated = groups_.compute->record();
    if (state.slot) {
      release(state);
      state.slot->holder = nullptr;  // its values are out of date
      forget(state);
    }
    gather_.quantize(unit, state.updated);
    // The first units of the next forward are gathered while the others are updated.
    const auto at = &state - states_.data();
    if (options_.forward_prefetch > 0 && at <= options_.forward_prefetch) gather(state);
  }

  // A captured graph holds for these slots of units, and for this order in which their memory is
  // reused.
  model::HookState hook_state() const override {
    const auto saved = std::make_shared<Saved>(Saved{states_, slots_.state()});
    std::vector<int64_t> key;
    for (const State& s : states_) key.insert(key.end(), {slots_.place_of(s.slot), s.uses, s.pins});
    for (const auto& slot : saved->slots.slots) {
      const auto holder = std::ranges::find(states_, slot.holder, &State::unit);
      const auto earlier = std::ranges::count_if(
          saved->slots.slots, [&](const auto& other) { return other.released < slot.released; });
      key.insert(key.end(), {holder - states_.begin(), slot.held, earlier});
    }
    return {std::move(key), saved};
  }
  void set_hook_state(const model::HookState& state, const Event& done) override {
    const auto& saved = *static_cast<const Saved*>(state.data.get());
    states_ = saved.states;
    slots_.set_state(saved.slots, done);
    for (State& s : states_) {
      if (done) s.updated = s.gathered = done;  // the update is older
      const Slot* const slot = s.slot;
      model::ParamStore::set_value(*s.unit, slot ? slot->buffer : Tensor(),
                                   slot ? slot->quantized : Tensor());
    }
  }

  // edge: the gathers that read what this rank owns -> its update
  void before_update() override { groups_.compute->wait(groups_.param_stream->record()); }

 private:
  struct State {
    model::ParamUnit* unit;
    Slot* slot = nullptr;  // the slot that has the full values, in use or not
    int uses = 0;          // uses that have begun and not ended, pins included
    int pins = 0;
    Event updated{}, gathered{};
    State *next_in_forward = nullptr, *next_in_backward = nullptr;
  };

  struct Saved {
    std::vector<State> states;
    UnitBufferPool::State slots;
  };

  // The ranks that gather a unit use its slots in the same order, and therefore register them in
  // the same order.
  UnitBufferPool::Memory memory_of_slots() const {
    if (!options_.registered) return {};
    return RegisteredMemory(groups_, *groups_.param_stream, device::MemoryCategory::buffers,
                            options_.symmetric);
  }

  // A pass uses a layer's unit, then the unit of its experts, in both directions.
  void order_backward() {
    for (size_t i = 0; i + 1 < states_.size(); ++i) states_[i].next_in_forward = &states_[i + 1];
    std::vector<State*> order;
    for (size_t i = states_.size(); i-- > 0;) {
      const bool experts_of_last = i > 0 && states_[i].unit->id.kind == model::UnitKind::experts &&
                                   states_[i - 1].unit->id.kind == model::UnitKind::layer;
      if (experts_of_last) order.push_back(&states_[i - 1]);
      order.push_back(&states_[i]);
      i -= experts_of_last;
    }
    for (size_t i = 0; i + 1 < order.size(); ++i) order[i]->next_in_backward = order[i + 1];
  }

  // Makes the unit's values readable. Gathers this unit, then `ahead` more along `next`.
  void use(model::ParamUnit& unit, int64_t ahead, State* State::*next) {
    if (!unit.sharding.values) return;
    State& state = state_of(unit);
    ++state.uses;
    // The code that pins units also gathers the next ones.
    if (state.pins) ahead = 0;
    State* at = &state;
    for (int64_t i = 0; at && i <= ahead; ++i, at = at->*next) gather(*at);
    groups_.compute->wait(state.gathered);  // edge: the unit's gather -> what reads it
  }

  void gather(State& state) {
    if (state.slot) {
      state.slot->held = true;
      return;
    }
    Stream& stream = *groups_.param_stream;
    model::ParamUnit& unit = *state.unit;
    const auto enough = size_t(unit.id.kind == model::UnitKind::experts ? options_.experts_at_once()
                                                                        : options_.units_at_once());
    // edge (in take): the last use of the slot's old values -> the gather that overwrites them
    state.slot = &slots_.take(unit, enough, stream,
                              [this](model::ParamUnit& evicted) { forget(state_of(evicted)); });
    stream.wait(state.updated);  // edge: the owners' update -> the gather
    gather_.gather(unit, state.slot->buffer, state.slot->quantized);
    state.gathered = stream.record();
    model::ParamStore::set_value(unit, state.slot->buffer, state.slot->quantized);
  }

  void release(State& state) { slots_.release(*state.slot, groups_.compute->record()); }

  void forget(State& state) {
    state.slot = nullptr;
    model::ParamStore::set_value(*state.unit, {});
  }

  State& state_of(const model::ParamUnit& unit) {
    const auto at = std::ranges::find(states_, &unit, &State::unit);
    MT_CHECK(at != states_.end(), "unit {} is unknown to ShardedParams", unit.name);
    return *at;
  }

  const DataGroups& groups_;
  const plan::ShardedParamsOptions options_;
  const UnitGather gather_;
  UnitBufferPool slots_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<ParamSync> sharded_params(model::ParamStore& params, const DataGroups& groups,
                                          const plan::ShardedParamsOptions& options,
                                          model::Quantizer* quantizer) {
  return std::make_unique<ShardedParams>(params, groups, options, quantizer);
}

}  // namespace mtrain::parallel
