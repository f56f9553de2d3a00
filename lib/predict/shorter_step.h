// Plans of shorter steps: with fewer micro-batches, and with fewer layers. What a long step takes
// follows from some of them, since micro-batches in the middle of a step are alike, and so are
// layers of the same kind.
#pragma once
#include <optional>
#include <vector>

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

// Returns how often the difference of the two steps follows the first one. 0: the plan has too few
// micro-batches, or a remainder.
int64_t further_groups(const RunPlan& plan, const FewMicroBatches& few);

// Returns the plan of a pipeline with the actions of its first micro-batch, of one in the middle
// and of the last one alone. They are in their order, but other actions may have been in between.
// Nothing if the actions need the others: pairs of passes, or weight gradients that wait for the
// end of the step.
std::optional<RunPlan> with_three_micro_batches(const RunPlan& plan);

// Two plans with few layers in each stage, so few that the layers between the first and the last
// ones of `more` are one period more than in `fewer`. A period is a layer, or several of different
// kinds.
struct FewLayers {
  RunPlan fewer, more;
  std::vector<double> periods;  // by stage: how often the difference follows `fewer`
};
// Returns nothing if this would save little.
std::optional<FewLayers> with_few_layers(const RunPlan& plan);

}  // namespace mtrain::predict
