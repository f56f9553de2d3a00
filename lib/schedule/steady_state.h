// The totals of a step with many micro-batches, from simulations of a few.
#pragma once
#include <functional>

#include "schedule/simulator.h"

namespace mtrain::schedule {

// What a step takes, over all ranks.
struct StepTotals {
  double step = 0;
  std::vector<double> busy;    // [rank]
  std::vector<LaneSums> sums;  // [rank]
  Exposure paired, unpaired;
  bool extrapolated = false;
  double bubble() const;  // as of a Timeline
};
StepTotals totals_of(const Timeline& timeline);

// Returns the lists of a flush of that many micro-batches, with messages; empty ranks if the
// schedule does not allow the number.
using ListsOf = std::function<Schedule(int64_t micro_batches)>;

// Returns the totals of `lists(micro_batches)`. A full pipeline repeats itself with each `period`
// of micro-batches if its lists do, and if all ranks move at the same rate. Then each period adds
// the same time. Therefore this simulates a step of about `warmup` micro-batches, and those with
// one and with two periods more. It extrapolates if in the last one all actions in the middle are
// the same time later than those one period before, and if both periods add the same to all totals.
// Otherwise it tries a longer warm-up. Finally, or if few micro-batches would be saved, it
// simulates all of them. The costs must not depend on the number of micro-batches.
StepTotals simulate_step(const ListsOf& lists, int64_t micro_batches, int64_t warmup,
                         int64_t period, const ScheduleCosts& costs);

}  // namespace mtrain::schedule
