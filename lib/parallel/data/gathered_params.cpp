#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "model/param/parameters.h"
#include "parallel/data/param_sync.h"

namespace mtrain::parallel {

namespace {

class ReplicatedParams : public ParamSync {};

class GatheredParams : public ParamSync {
 public:
  GatheredParams(model::ParamStore& params, const DataGroups& groups,
                 const plan::GatheredParamsOptions& options, size_t first_stage_units)
      : groups_(groups), options_(options), during_update_(units_of(options, first_stage_units)) {
    for (model::ParamUnit* unit : params.units()) states_.push_back({unit});
  }

  void before_forward(model::ParamUnit& unit) override { use(unit); }
  void before_backward(model::ParamUnit& unit) override { use(unit); }

  // The optimizer updates the units in their order.
  void updated(model::ParamUnit& unit) override {
    State& state = state_of(unit);
    const auto at = size_t(&state - states_.data());
    state.updated = groups_.compute->record();
    state.pending = true;
    if (!options_.overlap) return use(unit);
    if (at < during_update_) gather(state);
    if (&state != &states_.back() || !options_.together) return;
    for (State& s : states_) gather(s);
  }

  // edge: the gathers of units that no forward has waited for -> their next update
  void before_update() override { groups_.compute->wait(groups_.param_stream->record()); }

 private:
  // Returns how many first units are gathered as soon as they are updated.
  static size_t units_of(const plan::GatheredParamsOptions& o, size_t first_stage_units) {
    using During = plan::GatheredParamsOptions::DuringUpdate;
    if (o.during_update == During::first_stage) return first_stage_units;
    return o.during_update == During::all ? std::numeric_limits<size_t>::max() : 0;
  }

  struct State {
    model::ParamUnit* unit;
    bool pending = false;  // updated, but its gather has not begun
    Event updated{}, gathered{};
  };

  // Makes the unit's values readable, and starts the gather of the next unit.
  void use(model::ParamUnit& unit) {
    State& state = state_of(unit);
    gather(state);
    if (options_.overlap && &state != &states_.back()) gather(*(&state + 1));
    groups_.compute->wait(state.gathered);  // edge: the unit's gather -> what reads it
    state.gathered = {};                    // later uses need not wait again
  }

  void gather(State& state) {
    if (!state.pending) return;
    state.pending = false;
    Stream& stream = *groups_.param_stream;
    stream.wait(state.updated);  // edge: the unit's update -> its gather
    const model::ParamUnit& unit = *state.unit;
    for (const model::Piece& piece : unit.pieces)
      groups_.gather.all_gather(unit.shard_in_full(unit.value, piece), unit.full(unit.value, piece),
                                stream);
    state.gathered = stream.record();
  }

  State& state_of(const model::ParamUnit& unit) {
    const auto at = std::ranges::find(states_, &unit, &State::unit);
    MT_CHECK(at != states_.end(), "unit {} is unknown to GatheredParams", unit.name);
    return *at;
  }

  const DataGroups& groups_;
  const plan::GatheredParamsOptions options_;
  const size_t during_update_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<ParamSync> replicated_params() { return std::make_unique<ReplicatedParams>(); }

std::unique_ptr<ParamSync> gathered_params(model::ParamStore& params, const DataGroups& groups,
                                           const plan::GatheredParamsOptions& options,
                                           size_t first_stage_units) {
  return std::make_unique<GatheredParams>(params, groups, options, first_stage_units);
}

}  // namespace mtrain::parallel
