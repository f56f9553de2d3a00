#include "plan/executed_schedule.h"

#include "plan/run_plan.h"

namespace mtrain::plan {

schedule::Lowering lowering_of(const PipelineOptions& options) {
  return {.overlap = options.overlap,
          .one_by_one = options.one_by_one,
          .gradients_first = options.paired_gradient == schedule::PairedGradient::at_once,
          .max_gathered = options.max_gathered};
}

schedule::Schedule executed_schedule(const RunPlan& plan) {
  return schedule::executed(plan.schedule, lowering_of(plan.pipeline));
}

schedule::ScheduleCosts costs_in_order(const PipelineOptions& options) {
  return {.paired_gradient = options.paired_gradient, .overlap_p2p = options.overlap};
}

}  // namespace mtrain::plan
