// The memory of a rank by category, as planned by formula and as recorded.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory_peaks.h"
#include "plan/run_plan.h"

namespace mtrain::predict {

struct RankMemory {
  int64_t pp_rank = 0;
  plan::MemoryPeaks planned;
  // The memory of the live buffers of a recorded step (predict/recorded_step.h).
  plan::MemoryPeaks recorded;
};

// Records a step of the first rank of each pipeline rank in turn. Throws UserError if the plan's
// step cannot be recorded.
std::vector<RankMemory> memory_of_ranks(const RunPlan& plan);

// Returns two lines for each rank. `width` 0: lines have no limit.
std::string rank_memory_text(const std::vector<RankMemory>& ranks, int width);

}  // namespace mtrain::predict
