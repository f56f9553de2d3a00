#include "predict/step_table.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"
#include "plan/recipe_schedule.h"
#include "schedule/catalog.h"

namespace mtrain::predict {

namespace {

// "1F12 > layers.3.attention" -> "1F > layers.3.attention"
std::string part_of(const device::LaunchRecord& record) {
  if (!record.scope) return "";
  const std::string& scope = *record.scope;
  const size_t end = std::min(scope.find(" > "), scope.size());
  const size_t kept = scope.find_last_not_of("0123456789", end - 1) + 1;
  return scope.substr(0, kept) + scope.substr(end);
}

// Returns the plan with another number of micro-batches in each flush of the pipeline.
RunPlan with_micro_batches(RunPlan plan, int64_t micro_batches) {
  plan::Layout& l = plan.layout;
  l.micro_batches = plan.schedule_shape.micro_batches = micro_batches;
  plan.train.global_batch_size = l.step_micro_batches() * l.micro_batch * l.dp;
  plan.schedule = plan::schedule_of(plan.schedule_shape);
  return plan;
}

// How many micro-batches two recorded steps have: `few`, and `step` more.
struct Few {
  int64_t few, step;
};

// The first and the last micro-batch differ from the others. A rank of a pipeline holds activations
// of at most about 2 pp micro-batches, unless it holds those of all.
Few few_micro_batches(const RunPlan& plan) {
  const plan::ScheduleShape& s = plan.schedule_shape;
  if (s.pp == 1) return {2, 1};
  if (!schedule::schedule_kind(s.schedule).in_groups) return {2 * s.pp, 1};
  const int64_t group = s.group > 0 ? s.group : s.pp;
  return {2 * group, group};
}

}  // namespace

int64_t LaunchSums::bytes() const {
  return std::accumulate(read.begin(), read.end(),
                         std::accumulate(written.begin(), written.end(), int64_t{0}));
}

LaunchSums& LaunchSums::add(const LaunchSums& other, int64_t times) {
  count += times * other.count;
  flops += times * other.flops;
  wire_bytes += times * other.wire_bytes;
  for (size_t i = 0; i < read.size(); ++i) {
    read[i] += times * other.read[i];
    written[i] += times * other.written[i];
  }
  return *this;
}

LaunchSums StepTable::total() const {
  LaunchSums sums;
  for (const auto& [kind, row] : rows) sums.add(row);
  return sums;
}

StepTable table_of(const RecordedStep& step) {
  StepTable table;
  const auto& groups = step.records.groups();
  for (const device::LaunchRecord& r : step.records.items()) {
    if (r.waits_for) continue;
    LaunchKind kind{.part = part_of(r), .name = r.name, .stream = r.stream};
    if (r.group >= 0) {
      kind.group = groups[size_t(r.group)].name;
      kind.ranks = int64_t(groups[size_t(r.group)].ranks.size());
    }
    table.rows[kind].add({.count = 1,
                          .flops = r.flops,
                          .wire_bytes = r.wire_bytes,
                          .read = r.read,
                          .written = r.written});
  }
  for (size_t i = 0; i < table.peaks.size(); ++i) table.peaks[i] = step.memory[i].peak;
  table.peak = step.total.peak;
  return table;
}

StepTable step_table(const RunPlan& plan, int rank) {
  const auto [few, step] = few_micro_batches(plan);
  const int64_t more = plan.layout.micro_batches - few;
  if (plan.schedule_shape.table || more <= step || more % step != 0)
    return table_of(record_step(plan, rank));
  StepTable table = table_of(record_step(with_micro_batches(plan, few), rank));
  const StepTable next = table_of(record_step(with_micro_batches(plan, few + step), rank));
  // The shorter step may lack rows, and the longer one does not.
  const int64_t times = more / step;
  for (const auto& [kind, row] : next.rows) {
    LaunchSums& sums = table.rows[kind];
    const LaunchSums before = sums;
    sums.add(row, times).add(before, -times);
  }
  for (size_t i = 0; i < table.peaks.size(); ++i)
    table.peaks[i] += times * (next.peaks[i] - table.peaks[i]);
  table.peak += times * (next.peak - table.peak);
  return table;
}

}  // namespace mtrain::predict
