#include <set>
#include <unordered_map>

#include "base/error.h"
#include "ops/elementwise.h"
#include "parallel/data/grad_sync.h"
#include "parallel/data/unit_buffer_pool.h"

namespace mtrain::parallel {

namespace {

class ShardedGrads : public GradSync {
 public:
  ShardedGrads(model::ParamStore& params, const DataGroups& groups,
               const plan::ReduceOptions& reduce, bool defer, bool overlap)
      : params_(params),
        groups_(groups),
        reduce_(groups, reduce),
        defer_(defer),
        overlap_(overlap),
        slots_(*groups.compute, params.units(), device::MemoryCategory::grads, /*values=*/false) {
    for (model::ParamUnit* unit : params.units()) {
      states_[unit] = {};
      states_[unit].pieces.resize(unit->pieces.size());
    }
  }

  void begin_step(int64_t micro_batches) override {
    micro_batches_ = micro_batches;
    for (auto& [unit, state] : states_) {
      MT_CHECK(!state.slot, "gradients of {} were not reduced in the last step", unit->name);
      state.begun = 0;
      for (PieceState& piece : state.pieces) piece = {};
    }
  }

  void skip_stages(const std::set<int64_t>& stages) override { skipped_ = stages; }

  void before_backward(model::ParamUnit& unit) override {
    ++states_.at(&unit).begun;
    before_grads(unit);
  }

  void before_grads(model::ParamUnit& unit) override {
    if (!unit.sharding.grads) return;  // its full gradients always exist
    if (unit.trained_count == 0) return;
    State& state = states_.at(&unit);
    if (state.slot) return add_again(unit, state);
    const size_t enough = overlap_ ? 2 : 1;
    // edge (in take): the reduction of the slot's last unit -> the gradients of this unit
    state.slot = &slots_.take(unit, enough, *groups_.compute, [](model::ParamUnit&) {});
    model::ParamStore::set_grad(unit, state.slot->buffer);
    params_.zero_grads(*groups_.compute, unit);
    zero_gaps(unit);
  }

  void ready(model::Parameter& p) override {
    model::ParamUnit& unit = *p.unit;
    State& state = states_.at(&unit);
    for (size_t i = 0; i < unit.pieces.size(); ++i) {
      const model::Piece& piece = unit.pieces[i];
      if (p.begin < piece.begin || p.begin >= piece.begin + piece.count) continue;
      PieceState& progress = state.pieces[i];
      const int64_t whole = expected(unit, state) * int64_t(piece.params.size());
      MT_CHECK(progress.ready < whole, "the gradient of {} is ready too often", p.name);
      if (++progress.ready == whole) reduce(unit, state, i);
    }
  }

  void finish() override {
    for (auto& [unit, state] : states_) {
      if (skipped_.contains(unit->stage)) continue;
      bool whole = !state.slot;
      for (size_t i = 0; i < unit->pieces.size(); ++i)
        whole = whole && (unit->pieces[i].frozen ||
                          state.pieces[i].reduced ==
                              micro_batches_ * int64_t(unit->pieces[i].params.size()));
      MT_CHECK(whole, "gradients of {} did not become ready", unit->name);
    }
  }

 private:
  struct PieceState {
    int64_t ready = 0;    // complete gradients so far, one for each parameter and micro-batch
    int64_t reduced = 0;  // how many of them are in own_grad
    Event read;           // the end of the last reduction, while the unit still has its slot
  };
  struct State {
    Slot* slot = nullptr;  // the memory of the full gradients, while they exist
    int64_t begun = 0;     // backwards of this step that have begun; each adds to every parameter
    std::vector<PieceState> pieces;
  };

  // Returns how many micro-batches must have added to each parameter of a piece before the piece is
  // reduced. Gradients that are not sharded are reduced in place, once a step.
  int64_t expected(const model::ParamUnit& unit, const State& state) const {
    return defer_ || !unit.sharding.grads ? micro_batches_ : state.begun;
  }

  void reduce(model::ParamUnit& unit, State& state, size_t at) {
    Stream& stream = *groups_.grad_stream;
    const model::Piece& piece = unit.pieces[at];
    PieceState& progress = state.pieces[at];
    // edge: last weight gradient of the piece -> its reduction
    stream.wait(groups_.compute->record());
    if (unit.sharding.grads)
      reduce_.reduce_scatter(unit, unit.full(unit.grad, piece),
                             unit.local_shard(unit.own_grad, piece), progress.reduced > 0);
    else
      reduce_.all_reduce(unit, unit.full(unit.grad, piece));
    progress.reduced = progress.ready;
    if (!unit.sharding.grads) return;
    progress.read = stream.record();
    if (!overlap_) groups_.compute->wait(progress.read);
    for (size_t i = 0; i < unit.pieces.size(); ++i)
      if (!unit.pieces[i].frozen &&
          state.pieces[i].reduced < expected(unit, state) * int64_t(unit.pieces[i].params.size()))
        return;
    for (PieceState& p : state.pieces) p.read = {};
    slots_.release(*state.slot, stream.record());
    state.slot = nullptr;
    model::ParamStore::set_grad(unit, {});
  }

  // Prepares a unit that already has a slot for another backward. Pieces that have been reduced
  // start from zero.
  void add_again(model::ParamUnit& unit, State& state) {
    for (size_t i = 0; i < unit.pieces.size(); ++i) {
      PieceState& piece = state.pieces[i];
      if (!piece.read || piece.reduced < piece.ready) continue;
      groups_.compute->wait(piece.read);  // edge: the piece's reduction -> its next gradient
      piece.read = {};
      for (model::Parameter* p : unit.pieces[i].params)
        model::ParamStore::zero_grad(*groups_.compute, *p);
    }
  }

  // Clears the elements between parameters, which another unit may have written: the gradient norm
  // includes them.
  void zero_gaps(const model::ParamUnit& unit) {
    const auto zero = [&](int64_t begin, int64_t end) {
      if (begin < end) ops::fill(*groups_.compute, unit.grad.flat(begin, {end - begin}), 0);
    };
    for (const model::Piece& piece : unit.pieces) {
      if (piece.frozen) continue;
      int64_t end = piece.begin;
      for (const model::Parameter* p : piece.params) {
        zero(end, p->begin);
        end = p->begin + p->shape.count();
      }
      zero(end, piece.begin + piece.count);
    }
  }

  model::ParamStore& params_;
  const DataGroups& groups_;
  const GradReduce reduce_;
  const bool defer_, overlap_;
  UnitBufferPool slots_;
  std::unordered_map<model::ParamUnit*, State> states_;
  int64_t micro_batches_ = 1;
  std::set<int64_t> skipped_;  // stages
};

}  // namespace

std::unique_ptr<GradSync> sharded_grads(model::ParamStore& params, const DataGroups& groups,
                                        const plan::ReduceOptions& reduce, bool defer,
                                        bool overlap) {
  return std::make_unique<ShardedGrads>(params, groups, reduce, defer, overlap);
}

}  // namespace mtrain::parallel
