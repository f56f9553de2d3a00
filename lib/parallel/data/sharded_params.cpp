#include <algorithm>

#include "base/error.h"
#include "parallel/data/param_sync.h"
#include "parallel/data/unit_buffer_pool.h"

namespace mtrain::parallel {

namespace {

// A rank of a pipeline has no units if its stages have no layers.
DType value_type(model::ParamStore& params) {
  const auto units = params.units();
  return units.empty() ? DType::f32 : units[0]->own_value.dtype();
}

class ShardedParams : public ParamSync {
 public:
  ShardedParams(model::ParamStore& params, const DataGroups& groups,
                const plan::ShardedParamsOptions& options)
      : groups_(groups),
        options_(options),
        slots_(*groups.param_stream, params.units(), value_type(params),
               device::MemoryCategory::buffers) {
    for (model::ParamUnit* unit : params.units()) states_.push_back({unit});
  }

  void before_forward(model::ParamUnit& unit) override { use(unit, 1, options_.forward_prefetch); }
  void after_forward(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    if (--state.uses == 0 && options_.reshard_after_forward) release(state);
  }
  void before_recompute(model::ParamUnit& unit, model::ParamUnit* next) override {
    State& state = state_of(unit);
    ++state.uses;
    gather(state);
    if (next && options_.backward_prefetch > 0 && !state.pins) gather(state_of(*next));
    groups_.compute->wait(state.gathered);  // edge: the unit's gather -> what reads it
  }
  void before_backward(model::ParamUnit& unit) override {
    use(unit, -1, options_.backward_prefetch);
  }
  void after_backward(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    if (--state.uses == 0) release(state);
  }

  void pin(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    ++state.pins;
    ++state.uses;
    gather(state);
  }
  void unpin(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    --state.pins;
    if (--state.uses == 0) release(state);
  }

  void updated(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    state.updated = groups_.compute->record();
    if (state.slot) {
      release(state);
      state.slot->holder = nullptr;  // its values are out of date
      forget(state);
    }
    // The first units of the next forward are gathered while the others are updated.
    const auto at = &state - states_.data();
    if (options_.forward_prefetch > 0 && at <= options_.forward_prefetch) gather(state);
  }

  // edge: the gathers that read what this rank owns -> its update
  void before_update() override { groups_.compute->wait(groups_.param_stream->record()); }

 private:
  struct State {
    model::ParamUnit* unit;
    Slot* slot = nullptr;  // the slot that has the whole values, in use or not
    int uses = 0;          // uses that have begun and not ended, pins included
    int pins = 0;
    Event updated{}, gathered{};
  };

  // Makes the unit's values readable. Gathers this unit, then the next `ahead` in the `direction`
  // (1: forward, -1: backward).
  void use(model::ParamUnit& unit, int direction, int64_t ahead) {
    State& state = state_of(unit);
    ++state.uses;
    // Whoever pins units also gathers the next ones.
    if (state.pins) ahead = 0;
    for (int64_t i = 0; i <= ahead; ++i) {
      const int64_t at = (&state - states_.data()) + direction * i;
      if (at >= 0 && at < int64_t(states_.size())) gather(states_[size_t(at)]);
    }
    groups_.compute->wait(state.gathered);  // edge: the unit's gather -> what reads it
  }

  void gather(State& state) {
    if (state.slot) {
      state.slot->held = true;
      return;
    }
    Stream& stream = *groups_.param_stream;
    model::ParamUnit& unit = *state.unit;
    const size_t enough =
        1 + size_t(std::max(options_.forward_prefetch, options_.backward_prefetch));
    // edge (in take): the last use of the slot's old values -> the gather that overwrites them
    state.slot = &slots_.take(unit, enough, stream,
                              [this](model::ParamUnit& evicted) { forget(state_of(evicted)); });
    stream.wait(state.updated);  // edge: the owners' update -> the gather
    for (const model::Piece& piece : unit.pieces)
      groups_.gather.all_gather(unit.local_shard(unit.own_value, piece),
                                unit.full(state.slot->buffer, piece), stream);
    state.gathered = stream.record();
    model::ParamStore::set_value(unit, state.slot->buffer);
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
  UnitBufferPool slots_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<ParamSync> sharded_params(model::ParamStore& params, const DataGroups& groups,
                                          const plan::ShardedParamsOptions& options) {
  return std::make_unique<ShardedParams>(params, groups, options);
}

}  // namespace mtrain::parallel
