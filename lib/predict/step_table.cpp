#include "predict/step_table.h"

#include <algorithm>
#include <numeric>

#include "predict/shorter_step.h"

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
  const FewMicroBatches few = few_micro_batches(plan);
  const int64_t times = further_groups(plan, few);
  if (times == 0) return table_of(record_step(plan, rank));
  StepTable table = table_of(record_step(with_micro_batches(plan, few.few), rank));
  const StepTable next = table_of(record_step(with_micro_batches(plan, few.few + few.step), rank));
  // The shorter step may lack rows, and the longer one does not.
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
