#include "plan/schedule_bounds.h"

#include <algorithm>

#include "plan/overlap.h"
#include "plan/recipe_schedule.h"
#include "recipe/recipe.h"
#include "schedule/catalog.h"
#include "schedule/lower.h"
#include "schedule/simulator.h"

namespace mtrain::plan {

namespace {
const schedule::ScheduleKind& kind_of(const ScheduleShape& s) {
  return schedule::schedule_kind(s.schedule);
}
}  // namespace

ScheduleShape schedule_shape(const Recipe& r, const Layout& l, const Overlap& overlap) {
  const auto& p = r.distributed.pipeline;
  ScheduleShape s;
  s.micro_batches = l.micro_batches;
  s.moe_overlap = overlap.overlap_moe_expert_parallel_comm || overlap.fine_grained_1f1b;
  if (l.pp == 1) return s;
  s.schedule = p.pp_schedule;
  s.pp = l.pp;
  s.stages_per_rank = l.stages_per_rank;
  s.group = p.microbatch_group_size_per_vp_stage.value_or(0);
  if (p.pp_schedule_csv)
    s.table = std::make_shared<const schedule::Schedule>(schedule_from_csv(*p.pp_schedule_csv));
  return s;
}

schedule::ScheduleSize schedule_size(const ScheduleShape& s) {
  return {s.pp, s.stages_per_rank, s.micro_batches, kind_of(s).in_groups ? s.group : 0,
          s.moe_overlap};
}

int64_t chunks_in_flight(const ScheduleShape& s, int64_t pp_rank) {
  if (s.table) return peak_in_flight(s.table->ranks[size_t(pp_rank)]).to_weight_gradient;
  return chunks_in_flight(kind_of(s), schedule_size(s), pp_rank);
}

double chunks_held(const ScheduleShape& s, int64_t pp_rank, const ChunkParts& parts) {
  const schedule::ActionList list =
      s.table ? s.table->ranks[size_t(pp_rank)] : kind_of(s).list(schedule_size(s), pp_rank);
  double held = 0, most = 0;
  for (const schedule::Action& a : list) {
    const double size = parts.sizes.empty() ? 1 : parts.sizes.at(size_t(a.stage));
    if (a.overlaps_next) {
      most = std::max(most, held + parts.pair);
      held += size;
      continue;
    }
    held += size * (a.kind == schedule::ActionKind::F   ? 1
                    : a.kind == schedule::ActionKind::B ? -1
                    : a.kind == schedule::ActionKind::I ? parts.wgrad_inputs - 1
                                                        : -parts.wgrad_inputs);
    most = std::max(most, a.kind == schedule::ActionKind::B ? held + parts.unsent : held);
  }
  return most;
}

double bubble_fraction(const ScheduleShape& s) {
  if (s.table) return simulate(with_messages(*s.table), {}).bubble();
  return bubble_fraction(kind_of(s), schedule_size(s));
}

std::vector<int64_t> stages_of_rank(const ScheduleShape& s, int64_t pp_rank) {
  if (s.table) {
    std::vector<int64_t> stages;
    for (int64_t stage = 0; stage < s.table->stages; ++stage)
      if (s.table->rank_of(stage) == pp_rank) stages.push_back(stage);
    return stages;
  }
  return stages_of_rank(kind_of(s), schedule_size(s), pp_rank);
}

}  // namespace mtrain::plan
