#include <unordered_map>

#include "model/parameters.h"
#include "parallel/param_side.h"

namespace mtrain {

namespace {

class ReplicatedParams : public ParamSide {};

class GatheredParams : public ParamSide {
 public:
  GatheredParams(ParamStore& params, const DataGroups& groups, bool overlap)
      : groups_(groups), overlap_(overlap) {
    for (const ParamUnit* unit : params.units()) gathered_[unit] = {};
  }

  void before_forward(ParamUnit& unit) override { await(unit); }
  void before_backward(ParamUnit& unit) override { await(unit); }

  void updated(ParamUnit& unit) override {
    Stream& on = *groups_.param_stream;
    on.wait(groups_.compute->record());  // edge: the unit's update -> its gather
    for (const Piece& piece : unit.pieces)
      groups_.gather.all_gather(unit.part(unit.value, piece), unit.whole(unit.value, piece), on);
    gathered_.at(&unit) = on.record();
    if (!overlap_) await(unit);
  }

  // A unit that no forward has used is still on its way.
  void before_update() override { groups_.compute->wait(groups_.param_stream->record()); }

 private:
  void await(const ParamUnit& unit) {
    Event& gathered = gathered_.at(&unit);
    groups_.compute->wait(gathered);  // edge: the unit's gather -> what reads it
    gathered = {};                    // once is enough
  }

  const DataGroups& groups_;
  const bool overlap_;
  std::unordered_map<const ParamUnit*, Event> gathered_;
};

}  // namespace

std::unique_ptr<ParamSide> replicated_params() { return std::make_unique<ReplicatedParams>(); }

std::unique_ptr<ParamSide> gathered_params(ParamStore& params, const DataGroups& groups,
                                           bool overlap) {
  return std::make_unique<GatheredParams>(params, groups, overlap);
}

}  // namespace mtrain
