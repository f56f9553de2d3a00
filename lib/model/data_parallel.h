// The interface of data parallelism, which spreads samples over ranks. It decides where parameters,
// gradients and optimizer state live, when they travel, and what the ranks agree on.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "model/param/parameters.h"
#include "model/step.h"

namespace mtrain::model {

// What the hooks of a micro-batch know on the host: which memory has which values, and the events
// that later work waits for. The hooks of two micro-batches that begin with equal keys make the
// same launches, and end with the same state.
struct HookState {
  std::vector<int64_t> key;
  std::shared_ptr<const void> data;
};

class DataParallel : public ParamHooks {
 public:
  // Rank and number of the replicas that read different samples.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Says that the step's gradients are complete after `micro_batches` micro-batches, in whatever
  // order the parts of the model run them.
  virtual void begin_step(int64_t micro_batches) = 0;
  // Says that no gradient of these stages of the pipeline becomes ready in later steps
  // (Trainer::skip_stages).
  virtual void skip_stages(const std::set<int64_t>& /*stages*/) {}
  // Says that everything that one micro-batch adds to this gradient is enqueued on `compute`.
  virtual void grad_ready(Parameter& p) = 0;
  // From here on `compute` sees sums over all ranks in the gradients that this rank owns. They are
  // the gradients of the mean loss if each rank divides its loss by the tokens of the global batch
  // and multiplies it by grad_factor().
  virtual void finish_grads() = 0;
  virtual float grad_factor() const { return 1; }
  // A graph replays launches without calling hooks. set_hook_state() then makes the state that of
  // the end of the captured micro-batch, in which all events are `done`. Without `done` it restores
  // an earlier state as it was.
  virtual HookState hook_state() const { return {}; }
  virtual void set_hook_state(const HookState&, const Event& /*done*/) {}
  // Makes `compute` wait until it may write the values that this rank owns. finish_grads() includes
  // it.
  virtual void before_update() {}
  // Says that new values of this rank's part of the unit are enqueued on `compute`.
  virtual void updated(ParamUnit&) {}

  // Reduce a few numbers over all ranks, in place. sum_on_host() blocks the host until the sums are
  // there.
  virtual void sum(const Tensor& values) = 0;
  // Takes maxima over all ranks, in place; of experts, those over the ranks that have the same
  // ones.
  virtual void max(const Tensor& values, UnitKind of) = 0;
  virtual std::vector<int64_t> sum_on_host(std::vector<int64_t> values) = 0;
  // Does the same in the background: end_sum() blocks the host only until the sums of the last
  // begin_sum() are there. All ranks call both.
  virtual void begin_sum(std::vector<int64_t> values) = 0;
  virtual std::vector<int64_t> end_sum() = 0;
  // Whether this rank is the first of those over which max() reduces.
  virtual bool first_copy(UnitKind of) const = 0;
  // Sums over the ranks that own different parts of the parameters, in place.
  virtual void sum_parts(const Tensor& values) = 0;
  // Gathers a tensor of the whole unit on `compute`. `own` is this rank's part of it, laid out as
  // ParamUnit::own_value is. All ranks call it. Returns `own` itself if one rank owns all.
  virtual Tensor gather_unit(const ParamUnit& unit, const Tensor& own) = 0;
};

// Returns this rank's part of the unit's master weights in fp32, or of its bf16 values if those are
// trained without master weights; or the whole unit's, if this rank has them. All ranks call it.
Tensor own_master(DataParallel& data_parallel, ParamUnit& unit);
// Returns the master weights of the whole unit in fp32, or its bf16 values if those are trained
// without master weights. All ranks call it.
Tensor full_master(DataParallel& data_parallel, ParamUnit& unit);

// Data parallelism of a single rank, which has nothing to reduce.
class SingleRank : public DataParallel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void begin_step(int64_t) override {}
  void grad_ready(Parameter&) override {}
  void finish_grads() override {}
  void sum(const Tensor&) override {}
  void max(const Tensor&, UnitKind) override {}
  bool first_copy(UnitKind) const override { return true; }
  std::vector<int64_t> sum_on_host(std::vector<int64_t> values) override { return values; }
  void begin_sum(std::vector<int64_t> values) override { values_ = std::move(values); }
  std::vector<int64_t> end_sum() override { return values_; }
  void sum_parts(const Tensor&) override {}
  Tensor gather_unit(const ParamUnit&, const Tensor& own) override { return own; }

 private:
  std::vector<int64_t> values_;  // of the last begin_sum()
};

}  // namespace mtrain::model
