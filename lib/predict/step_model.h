// Predicts steps of a plan on a cluster: the launches that the plan's Trainer makes, replayed with
// the costs of that cluster.
#pragma once
#include <memory>

#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/launch_costs.h"
#include "predict/prediction.h"
#include "schedule/simulator.h"

namespace mtrain::predict {

// What a model records of a step.
enum class RecordedParts {
  few,  // few layers of each kind and few micro-batches, from which the others follow
  all
};

// A step of a pipeline.
struct PlayedPipeline {
  schedule::Schedule schedule;
  schedule::Timeline timeline;
  // Seconds before the first flush: of other work, and by how much the gathers of the first forward
  // last longer than later ones. What follows the last flush takes the rest of the step. The lists
  // and the timeline have all flushes.
  double before = 0, first_gather = 0;
};

class StepModel {
 public:
  // Records the launches, without ranks and devices. The plan must have a vocabulary, and ranks for
  // which the cluster has devices. Takes some ten milliseconds, also for 405B on 16,384 ranks,
  // unless all is recorded. Throws UserError for a plan that cannot be recorded
  // (predict/recorded_step.h).
  StepModel(const RunPlan& plan, const plan::Cluster& cluster,
            RecordedParts parts = RecordedParts::few);
  ~StepModel();

  // Takes microseconds to milliseconds, so searches and fits can call it often. The ranks of one
  // stage are alike: one of them stands for all, with the slowest link that one of their groups
  // has.
  Prediction price(const LaunchCosts& costs) const;
  // Returns the lists of the plan's pipeline and their times, in seconds, for pictures
  // (schedule/render.h). The plan must have a pipeline.
  PlayedPipeline play(const LaunchCosts& costs) const;
  // How many stages were recorded, over all records: of stages that are alike, one.
  size_t recorded_stages() const;

 private:
  class Recording;
  const std::unique_ptr<const Recording> recording_;
};

}  // namespace mtrain::predict
