// One rank of a pipeline: its stages of the model, and the list of the schedule's actions that it
// runs. A single rank is a pipeline of one stage.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "model/gpt.h"
#include "pipeline/links.h"
#include "pipeline/pass_pairs.h"
#include "plan/options/pipeline_options.h"
#include "schedule/action.h"

namespace mtrain::pipeline {

using PipelineStages = std::map<int64_t, std::unique_ptr<model::Gpt>>;  // this rank's, by stage

// The input of a run. Every rank of the pipeline has the same micro-batches.
struct MicroBatches {
  const std::vector<model::MicroBatch>& batches;
  std::vector<int64_t> numbers;  // the micro-batches' numbers in the global batch
  int64_t first = 0;             // micro-batches of the step that come before these
  uint64_t seed = 0;             // seed of dropout
  int64_t step = 0;              // training step, from 1
  bool training = true;
  Tensor loss;           // fp64, one element; the last stage adds to it
  float grad_scale = 1;  // as in LossRequest
  std::vector<model::LossRequest::OfDepth> depths = {};  // as in LossRequest
  model::WgradQueue::OnReady on_ready = {};              // as in WgradQueue
  model::ParamHooks* hooks = nullptr;                    // as in Step
  model::GraphInputs* graph_inputs = nullptr;            // as in Step
  const model::ExpertsOfStep* experts = nullptr;         // as in Step
};

// Tracks how far the host enqueues ahead of the device. The flushes of one run share it. A run that
// is recorded as a graph has one of its own, since the host cannot wait for events of another run
// while it records.
struct RunAhead {
  int64_t& dataflow_index;          // as in Pipeline::dataflow_index()
  std::deque<Event> computed = {};  // the ends of the last few computations
};

class Pipeline {
 public:
  // `schedule` has only computations; the Pipeline adds the messages and the gathering of weights.
  Pipeline(PipelineLinks links, PipelineStages stages, const schedule::Schedule& schedule,
           const plan::PipelineOptions& options);

  // Runs forward and backward of the micro-batches, in the order of actions(). These are one flush
  // of the pipeline; a multiple of the schedule's micro-batches makes several flushes.
  void run(const MicroBatches& work);
  // Runs forward and backward of a single micro-batch, on a rank that is alone in its pipeline.
  void run_one(const MicroBatches& work);
  // Runs only the forwards of any number of micro-batches.
  void forward(const MicroBatches& work);

  // Sums the values over the ranks of the pipeline, in place.
  void sum(const Tensor& values) const;
  // Sums the gradient of a tied token table over the two ranks that have it; `compute` may read the
  // sum afterwards. Call it after DataParallel::finish_grads().
  void finish_grads(model::ParamStore& params) const;

  // Removes all actions of these stages, except those that gather weights. Other stages of this
  // rank must not need what these compute.
  void skip_stages(const std::set<int64_t>& stages);

  const PipelineLinks& links() const { return links_; }
  const schedule::ActionList& actions() const { return list_; }  // all actions of this rank
  // The number, in the step's data flow, of the computation that was enqueued last. On every rank,
  // computations that it depends on have lower numbers, and those that depend on it higher ones.
  int64_t dataflow_index() const { return dataflow_index_; }

 private:
  schedule::Schedule lower(const schedule::Schedule& computations) const;

  const PipelineLinks links_;
  const PipelineStages stages_;
  const schedule::Schedule schedule_;  // the computations
  const plan::PipelineOptions options_;
  schedule::ActionList list_;
  PassPairs pairs_;
  int64_t dataflow_index_ = 0;
};

}  // namespace mtrain::pipeline
