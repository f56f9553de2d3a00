// Decides which stages and ranks of a pipeline are alike. One of them is recorded, and stands for
// the others.
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "plan/run_plan.h"
#include "schedule/action.h"

namespace mtrain::predict {

// A pipeline rank that is recorded.
struct RankToRecord {
  int64_t pp_rank = 0;
  std::set<int64_t> stages;   // those of its stages that stand for themselves, and perhaps others
  std::set<int64_t> skipped;  // those that need not be recorded, as record_step() takes them
};

struct AlikeStages {
  std::vector<RankToRecord> ranks;  // one of each kind
  std::vector<size_t> of_rank;      // [pp rank]: the place in `ranks` of what stands for it
  std::vector<int64_t> of_stage;    // [stage]: the stage that stands for it
};

// `lists` are those that the plan's executor runs. If `all`, nothing stands for anything else.
AlikeStages alike_stages(const RunPlan& plan, const schedule::Schedule& lists, bool all);

}  // namespace mtrain::predict
