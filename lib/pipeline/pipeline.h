// One rank of a pipeline: its stages of the model, and the schedule's list that says when it does
// what. One rank alone is a pipeline of one stage.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "model/gpt.h"
#include "pipeline/links.h"
#include "plan/pipeline_options.h"
#include "schedule/action.h"

namespace mtrain {

using PipelineStages = std::map<int64_t, std::unique_ptr<Gpt>>;  // of this rank, by stage

// What a rank is given to do. Every rank of the pipeline has the same micro-batches.
struct MicroBatches {
  const std::vector<MicroBatch>& batches;
  std::vector<int64_t> numbers;  // in the global batch
  uint64_t seed = 0;             // of dropout
  int64_t step = 0;              // from 1
  bool training = true;
  Tensor loss;           // fp64, one element: the rank with the last stage adds to it
  float grad_scale = 1;  // as in LossRequest
  WgradQueue::OnReady on_ready = {};
  UnitUse* use = nullptr;
  ReplayedValues* replayed = nullptr;  // as in Step; null: values are given to each launch
};

class Pipeline {
 public:
  // `schedule`: computations alone.
  Pipeline(PipelineLinks links, PipelineStages stages, const Schedule& schedule,
           const PipelineOptions& options);

  // Forward and backward of the schedule's micro-batches, in the order of actions().
  void run(const MicroBatches& work);
  // The same of a single one, by a rank that is alone in its pipeline: of a schedule's, in turn.
  void run_one(const MicroBatches& work);
  // Forward alone, of any number of micro-batches.
  void forward(const MicroBatches& work);

  // Sums over the stages' ranks.
  void sum(const Tensor& values) const;
  // From here on `compute` sees the whole gradient of a tied table that two ranks have. After
  // DataParallel::finish_grads().
  void finish_grads(ParamStore& params) const;

  // fp32 of one rank of the world to another of this pipeline, on `compute` there; absent on all
  // others.
  Tensor hand_on(const Tensor& data, const Shape& shape, int from, int to) const;

  const PipelineLinks& links() const { return links_; }
  const Gpt& first_stage() const { return *stages_.begin()->second; }  // of this rank
  const ActionList& actions() const { return list_; }  // of this rank, with all that it does
  // Where in the step's data flow the computation stands that was enqueued last: what it depends
  // on has a lower number on every rank, and what follows from it a higher one.
  int64_t place() const { return place_; }

 private:
  Schedule lower(const Schedule& computations) const;

  const PipelineLinks links_;
  const PipelineStages stages_;
  const Schedule placed_;
  const PipelineOptions options_;
  ActionList list_;
  int64_t place_ = 0;
};

}  // namespace mtrain
