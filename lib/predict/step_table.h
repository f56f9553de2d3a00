// What a rank enqueues in a step, as a table: launches that are alike are one row. The table of a
// step with many micro-batches follows from those of two shorter steps.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/recording/records.h"
#include "plan/run_plan.h"
#include "predict/recorded_step.h"

namespace mtrain::predict {

// What makes launches alike.
struct LaunchKind {
  // The part of the step, without the number of the micro-batch: "1F > layers.3.attention", or the
  // segment alone. Empty: what comes before the micro-batches and after them.
  std::string part;
  std::string name;  // as in LaunchRecord, without waits
  device::StreamId stream = device::StreamKind::compute;
  std::string group;  // of a communication: its name; else empty
  int64_t ranks = 0;  // of the group
  auto operator<=>(const LaunchKind&) const =
      default;  // NOLINT(modernize-use-nullptr): false alarm
};

// Sums over the launches of a kind.
struct LaunchSums {
  int64_t count = 0, flops = 0, wire_bytes = 0;
  device::BytesByCategory read{}, written{};
  int64_t bytes() const;  // read and written
  LaunchSums& add(const LaunchSums& other, int64_t times = 1);
  bool operator==(const LaunchSums&) const = default;
};

struct StepTable {
  std::map<LaunchKind, LaunchSums> rows;
  // The peaks of live memory in bytes, by category and in total.
  device::BytesByCategory peaks{};
  int64_t peak = 0;

  LaunchSums total() const;  // of all rows
};

StepTable table_of(const RecordedStep& step);

// Returns the table of a step of `rank`. If the step has many micro-batches, two steps with few are
// recorded; each further group of micro-batches then adds the difference between the two. Takes
// about 0.1 s for a rank with 13,000 launches a step. The plan is as for record_step().
StepTable step_table(const RunPlan& plan, int rank);

}  // namespace mtrain::predict
