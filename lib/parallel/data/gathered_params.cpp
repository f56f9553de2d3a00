#include <algorithm>
#include <vector>

#include "base/error.h"
#include "model/param/parameters.h"
#include "parallel/data/param_sync.h"
#include "parallel/data/unit_gather.h"

namespace mtrain::parallel {

namespace {

class ReplicatedParams : public ParamSync {};

class GatheredParams : public ParamSync {
 public:
  GatheredParams(model::ParamStore& params, const DataGroups& groups,
                 const plan::GatheredParamsOptions& options, model::Quantizer* quantizer)
      : groups_(groups),
        options_(options),
        gather_(groups, quantizer, /*in_place=*/options.symmetric) {
    for (model::ParamUnit* unit : params.units()) states_.push_back({unit});
  }

  void before_forward(model::ParamUnit& unit) override { use(unit); }
  void before_backward(model::ParamUnit& unit) override { use(unit); }

  // The optimizer updates the units in their order.
  void updated(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    state.updated = groups_.compute->record();
    state.pending = true;
    gather_.quantize(unit, state.updated);
    if (!options_.overlap) return use(unit);
    if (gathered_during_update(state)) gather(state);
    if (&state != &states_.back() || !options_.together) return;
    for (State& s : states_) gather(s);
  }

  // edge: the gathers of units that no forward has waited for -> their next update
  void before_update() override { groups_.compute->wait(groups_.param_stream->record()); }

 private:
  struct State {
    model::ParamUnit* unit;
    bool pending = false;  // updated, but its gather has not begun
    Event updated{}, gathered{};
  };

  // Whether the unit is gathered as soon as it is updated.
  bool gathered_during_update(const State& state) const {
    using During = plan::GatheredParamsOptions::DuringUpdate;
    if (options_.during_update == During::first_stage)
      return state.unit->stage == states_.front().unit->stage;
    return options_.during_update == During::all;
  }

  // Makes the unit's values readable, and starts the gathers that the unit's computation hides: the
  // next unit's, or at the end of a stage those of all units of the next stage. A rank runs several
  // micro-batches of a stage before it begins the next stage.
  void use(model::ParamUnit& unit) {
    State& state = state_of(unit);
    gather(state);
    if (options_.overlap) gather_next(state);
    groups_.compute->wait(state.gathered);  // edge: the unit's gather -> what reads it
    state.gathered = {};                    // later uses need not wait again
  }

  void gather_next(const State& state) {
    auto next = states_.begin() + (&state - states_.data()) + 1;
    if (next == states_.end()) return;
    const int64_t stage = next->unit->stage;
    gather(*next);
    if (stage == state.unit->stage) return;
    while (++next != states_.end() && next->unit->stage == stage) gather(*next);
  }

  void gather(State& state) {
    if (!state.pending) return;
    state.pending = false;
    Stream& stream = *groups_.param_stream;
    stream.wait(state.updated);  // edge: the unit's update -> its gather
    gather_.gather(*state.unit, state.unit->value, state.unit->quantized_value);
    state.gathered = stream.record();
  }

  State& state_of(const model::ParamUnit& unit) {
    const auto at = std::ranges::find(states_, &unit, &State::unit);
    MT_CHECK(at != states_.end(), "unit {} is unknown to GatheredParams", unit.name);
    return *at;
  }

  const DataGroups& groups_;
  const plan::GatheredParamsOptions options_;
  const UnitGather gather_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<ParamSync> replicated_params() { return std::make_unique<ReplicatedParams>(); }

std::unique_ptr<ParamSync> gathered_params(model::ParamStore& params, const DataGroups& groups,
                                           const plan::GatheredParamsOptions& options,
                                           model::Quantizer* quantizer) {
  return std::make_unique<GatheredParams>(params, groups, options, quantizer);
}

}  // namespace mtrain::parallel
