#include "predict/shorter_step.h"

#include "plan/recipe_schedule.h"
#include "schedule/catalog.h"

namespace mtrain::predict {

RunPlan with_micro_batches(RunPlan plan, int64_t micro_batches) {
  plan::Layout& l = plan.layout;
  l.micro_batches = plan.schedule_shape.micro_batches = micro_batches;
  plan.train.global_batch_size = l.step_micro_batches() * l.micro_batch * l.dp;
  plan.schedule = plan::schedule_of(plan.schedule_shape);
  return plan;
}

FewMicroBatches few_micro_batches(const RunPlan& plan) {
  const plan::ScheduleShape& s = plan.schedule_shape;
  if (s.pp == 1) return {2, 1};
  if (!schedule::schedule_kind(s.schedule).in_groups) return {2 * s.pp, 1};
  const int64_t group = s.group > 0 ? s.group : s.pp;
  return {2 * group, group};
}

int64_t further_groups(const RunPlan& plan, const FewMicroBatches& few) {
  const int64_t more = plan.layout.micro_batches - few.few;
  return plan.schedule_shape.table || more <= few.step || more % few.step != 0 ? 0
                                                                               : more / few.step;
}

}  // namespace mtrain::predict
