#include "predict/rank_memory.h"

#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "base/text_table.h"
#include "predict/recorded_step.h"
#include "predict/step_table.h"

namespace mtrain::predict {

namespace {

plan::MemoryPeaks peaks_of(const StepTable& step) {
  const auto peak = [&](device::MemoryCategory c) { return double(step.peaks[size_t(c)]); };
  using enum device::MemoryCategory;
  return {.params = peak(params),
          .grads = peak(grads),
          .optimizer = peak(optimizer),
          .activations = peak(activations),
          .buffers = peak(buffers),
          .total = double(step.peak)};
}

// A short step is recorded as it is. The memory of a long one follows from two short ones, which is
// exact if the same buffers make the peaks of both.
StepTable recorded_step(const RunPlan& plan, int rank) {
  constexpr int64_t kShort = 32;  // micro-batches
  return plan.layout.step_micro_batches() <= kShort ? table_of(record_step(plan, rank))
                                                    : step_table(plan, rank);
}

}  // namespace

std::vector<RankMemory> memory_of_ranks(const RunPlan& plan) {
  if (const std::string obstacle = recording_obstacle(plan); !obstacle.empty())
    throw UserError("the step of this plan cannot be recorded: " + obstacle);
  std::vector<RankMemory> ranks;
  const plan::Layout& l = plan.layout;
  for (int64_t rank = 0; rank < l.pp; ++rank)
    ranks.push_back({.pp_rank = rank,
                     .planned = estimate_peaks(plan, rank),
                     .recorded = peaks_of(recorded_step(plan, int(rank * l.world / l.pp)))});
  return ranks;
}

std::string rank_memory_text(const std::vector<RankMemory>& ranks, int width) {
  constexpr auto kName = TableColumn::Align::left;
  std::vector<std::vector<std::string>> rows;
  for (const RankMemory& rank : ranks)
    for (const auto& [name, m] :
         {std::pair{"planned", rank.planned}, std::pair{"recorded", rank.recorded}}) {
      std::vector<std::string> cells{std::to_string(rank.pp_rank), name};
      for (const double bytes : {m.params, m.grads, m.optimizer, m.activations, m.buffers, m.total})
        cells.push_back(human_bytes(bytes));
      rows.push_back(std::move(cells));
    }
  return text_table({{"pp rank", 9, kName},
                     {"memory", 10, kName},
                     {"params", 10},
                     {"grads", 10},
                     {"optimizer", 10},
                     {"activations", 12},
                     {"buffers", 10},
                     {"at once", 10}},
                    rows, width);
}

}  // namespace mtrain::predict
