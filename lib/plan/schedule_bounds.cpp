#include "plan/schedule_bounds.h"

#include <algorithm>

namespace mtrain {

namespace {
using Schedule = PipelineScheduleName;
bool is_v(Schedule s) { return s == Schedule::v_schedule || s == Schedule::dualpipev; }
}  // namespace

ScheduleShape schedule_shape(const Recipe& r, const Layout& l) {
  const auto& p = r.distributed.pipeline;
  ScheduleShape s;
  s.schedule = p.pp_schedule;
  s.pp = l.pp;
  s.stages_per_rank = l.stages_per_rank;
  s.micro_batches = l.micro_batches;
  // Without a group size M div pp rounds of equal length.
  s.group = p.microbatch_group_size_per_vp_stage.value_or(
      l.micro_batches / std::max<int64_t>(1, l.micro_batches / l.pp));
  s.moe_overlap = r.comm_overlap.overlap_moe_expert_parallel_comm;
  return s;
}

int64_t chunks_in_flight(const ScheduleShape& s, int64_t pp_rank) {
  const int64_t P = s.pp, V = s.stages_per_rank, M = s.micro_batches;
  const int64_t all = M * V, after = P - 1 - pp_rank;
  switch (s.schedule) {
    case Schedule::gpipe:
    case Schedule::looped_bfs: return all;
    case Schedule::one_f_one_b: return std::min(all, after + 1);
    case Schedule::interleaved_1f1b:
    case Schedule::dfs:
      return std::min(all, (V - 1) * s.group + 2 * after + 1 + (s.moe_overlap ? 1 : 0));
    case Schedule::zero_bubble: return std::min(all, (V - 1) * s.group + P);
    case Schedule::v_schedule: return std::min(all, 2 * P);
    case Schedule::dualpipev: return std::min(all, 2 * P + 1);
  }
  return all;
}

double bubble_fraction(const ScheduleShape& s) {
  if (s.pp == 1) return 0;
  const double ranks = double(s.pp - 1), V = double(s.stages_per_rank), M = double(s.micro_batches);
  // Idle time over busy time; a micro-batch keeps a rank busy for 3 units.
  double idle = ranks / (V * M);
  if (s.schedule == Schedule::zero_bubble) idle = ranks / (3 * V * M);
  if (s.schedule == Schedule::v_schedule) idle = ranks / (2 * 3 * M);
  if (s.schedule == Schedule::dualpipev) idle = ranks / (3 * M);
  return idle / (1 + idle);
}

std::vector<int64_t> stages_of_rank(const ScheduleShape& s, int64_t pp_rank) {
  if (is_v(s.schedule)) return {pp_rank, 2 * s.pp - 1 - pp_rank};
  std::vector<int64_t> stages;
  for (int64_t c = 0; c < s.stages_per_rank; ++c) stages.push_back(pp_rank + c * s.pp);
  return stages;
}

}  // namespace mtrain
