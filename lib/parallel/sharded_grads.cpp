#include <unordered_map>

#include "base/error.h"
#include "ops/ops.h"
#include "parallel/grad_side.h"
#include "parallel/slot_pool.h"

namespace mtrain {

namespace {

class ShardedGrads : public GradSide {
 public:
  ShardedGrads(ParamStore& params, const DataGroups& groups, const ReduceOptions& reduce,
               bool defer, bool overlap)
      : params_(params),
        groups_(groups),
        reduce_(groups, reduce),
        defer_(defer),
        overlap_(overlap),
        slots_(*groups.compute, params.units(), DType::f32, MemoryCategory::grads) {
    for (ParamUnit* unit : params.units()) {
      states_[unit] = {};
      for (const Piece& piece : unit->pieces) states_[unit].missing.push_back(piece.params.size());
    }
  }

  void begin_micro_batch(bool last) override {
    last_ = last;
    for (auto& [unit, state] : states_) {
      MT_CHECK(defer_ || !state.slot, "gradients of {} never became ready", unit->name);
      for (size_t i = 0; i < unit->pieces.size(); ++i)
        state.missing[i] = unit->pieces[i].params.size();
      state.pieces_missing = unit->pieces.size();
    }
  }

  void before_backward(ParamUnit& unit) override {
    State& state = states_.at(&unit);
    if (state.slot) return;
    // edge: the reduction of the slot's last unit -> this one's gradients
    const size_t enough = overlap_ ? 2 : 1;
    state.slot = &slots_.take(unit, enough, *groups_.compute, [](ParamUnit&) {});
    ParamStore::set_grad(unit, state.slot->buffer);
    params_.zero_grads(*groups_.compute, unit);
    zero_gaps(unit);
  }

  void ready(Parameter& p) override {
    if (defer_ && !last_) return;
    ParamUnit& unit = *p.unit;
    State& state = states_.at(&unit);
    for (size_t i = 0; i < unit.pieces.size(); ++i) {
      const Piece& piece = unit.pieces[i];
      if (p.begin < piece.begin || p.begin >= piece.begin + piece.count) continue;
      MT_CHECK(state.missing[i] > 0, "{} is ready twice", p.name);
      if (--state.missing[i] == 0) reduce(unit, state, piece);
    }
  }

  void finish() override {
    for (auto& [unit, state] : states_) {
      MT_CHECK(!state.slot && state.summed, "gradients of {} never became ready", unit->name);
      state.summed = false;
    }
  }

 private:
  struct State {
    Slot* slot = nullptr;         // of the whole gradients, while they exist
    std::vector<size_t> missing;  // by piece: parameters whose gradient is awaited
    size_t pieces_missing = 0;
    bool summed = false;  // the own part has an earlier micro-batch's sum
  };

  void reduce(ParamUnit& unit, State& state, const Piece& piece) {
    Stream& on = *groups_.grad_stream;
    on.wait(groups_.compute->record());  // edge: last weight gradient of the piece -> its reduction
    reduce_.reduce_scatter(unit.whole(unit.grad, piece), unit.own(unit.own_grad, piece),
                           state.summed);
    if (!overlap_) groups_.compute->wait(on.record());
    if (--state.pieces_missing > 0) return;
    state.summed = true;
    slots_.release(*state.slot, on.record());
    state.slot = nullptr;
    ParamStore::set_grad(unit, {});
  }

  // What lies between parameters, which another unit may have used, counts for nothing.
  void zero_gaps(const ParamUnit& unit) {
    const auto zero = [&](int64_t begin, int64_t end) {
      if (begin < end) ops::fill(*groups_.compute, unit.grad.flat(begin, {end - begin}), 0);
    };
    for (const Piece& piece : unit.pieces) {
      int64_t end = piece.begin;
      for (const Parameter* p : piece.params) {
        zero(end, p->begin);
        end = p->begin + p->shape.count();
      }
      zero(end, piece.begin + piece.count);
    }
  }

  ParamStore& params_;
  const DataGroups& groups_;
  const GradReduce reduce_;
  const bool defer_, overlap_;
  SlotPool slots_;
  std::unordered_map<ParamUnit*, State> states_;
  bool last_ = false;
};

}  // namespace

std::unique_ptr<GradSide> sharded_grads(ParamStore& params, const DataGroups& groups,
                                        const ReduceOptions& reduce, bool defer, bool overlap) {
  return std::make_unique<ShardedGrads>(params, groups, reduce, defer, overlap);
}

}  // namespace mtrain
