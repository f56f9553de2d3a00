// The interface of data parallelism, which spreads samples over ranks. It decides where parameters,
// gradients and optimizer state live, when they travel, and what the ranks agree on.
#pragma once
#include <cstdint>
#include <vector>

#include "model/param/parameters.h"
#include "model/step.h"

namespace mtrain::model {

class DataParallel : public ParamHooks {
 public:
  virtual int rank() const = 0;  // which samples this rank reads
  virtual int size() const = 0;

  // A step's gradients are complete after so many micro-batches, whatever the order in which parts
  // of the model run them.
  virtual void begin_step(int64_t micro_batches) = 0;
  // Says that everything that one micro-batch adds to this gradient is enqueued on `compute`.
  virtual void grad_ready(Parameter& p) = 0;
  // From here on `compute` sees the sums over all ranks in the gradients that this rank owns. They
  // expect that the loss was divided by the tokens of the global batch and multiplied by
  // grad_factor().
  virtual void finish_grads() = 0;
  virtual float grad_factor() const { return 1; }
  // Says that the work which `compute` is given next may write values that this rank owns.
  // finish_grads() says so as well.
  virtual void before_update() {}
  // Says that new values of what this rank owns of the unit are enqueued on `compute`.
  virtual void updated(ParamUnit&) {}

  // Sum a few numbers over all ranks. sum_on_host() blocks the host until the sums are there.
  virtual void sum(const Tensor& values) = 0;
  virtual std::vector<int64_t> sum_on_host(std::vector<int64_t> values) = 0;
  virtual void max(const Tensor& values) = 0;  // over all ranks
  // Sums over the ranks that own different parts of the parameters.
  virtual void sum_parts(const Tensor& values) = 0;
  // Returns the unit's elements from every rank's own part (ParamUnit::own), on `compute`. All
  // ranks call it. Nothing is copied where one rank owns all.
  virtual Tensor whole(const ParamUnit& unit, const Tensor& own) = 0;
};

// Returns the master weights of the whole unit in fp32, or its bf16 values where those are trained
// without master weights.
Tensor whole_master(DataParallel& data_parallel, ParamUnit& unit);

// One rank alone, which has nothing to reduce.
class SingleRank : public DataParallel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void begin_step(int64_t) override {}
  void grad_ready(Parameter&) override {}
  void finish_grads() override {}
  void sum(const Tensor&) override {}
  std::vector<int64_t> sum_on_host(std::vector<int64_t> values) override { return values; }
  void max(const Tensor&) override {}
  void sum_parts(const Tensor&) override {}
  Tensor whole(const ParamUnit&, const Tensor& own) override { return own; }
};

}  // namespace mtrain::model
