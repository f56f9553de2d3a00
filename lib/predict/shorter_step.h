// Plans of steps with fewer micro-batches. What a long step takes follows from two of them, since
// micro-batches in the middle of a step are alike.
#pragma once
#include "plan/run_plan.h"

namespace mtrain::predict {

// Returns the plan with another number of micro-batches in each flush of the pipeline.
RunPlan with_micro_batches(RunPlan plan, int64_t micro_batches);

// How many micro-batches two recorded steps have: `few`, and `step` more.
struct FewMicroBatches {
  int64_t few, step;
};
// The first and the last micro-batch differ from the others. A rank of a pipeline holds activations
// of at most about 2 pp micro-batches, unless it holds those of all.
FewMicroBatches few_micro_batches(const RunPlan& plan);

// Returns how often the second step's difference is added to it, or to the first one. 0: the plan
// has too few micro-batches, or a remainder.
int64_t further_groups(const RunPlan& plan, const FewMicroBatches& few);

}  // namespace mtrain::predict
