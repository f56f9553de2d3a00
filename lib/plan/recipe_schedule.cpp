#include "plan/recipe_schedule.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/schedule_bounds.h"
#include "recipe/recipe.h"
#include "recipe/value.h"
#include "schedule/catalog.h"
#include "schedule/validator.h"

namespace mtrain {

namespace {

Action action_of(const ScheduleCell& cell) {
  const ActionKind kind = cell.action == 'F'   ? ActionKind::F
                          : cell.action == 'B' ? ActionKind::B
                          : cell.action == 'I' ? ActionKind::I
                                               : ActionKind::W;
  return {kind, cell.stage, cell.micro_batch};
}

}  // namespace

std::string schedule_name(const std::string& word) {
  for (const auto& entry : enum_names(PipelineScheduleName{}))
    if (fold_name(entry.name) == fold_name(word)) return std::string(enum_name(entry.value));
  return word;
}

Schedule schedule_from_rows(const ScheduleRows& rows, const std::string& source) {
  int64_t cells = 0, last_stage = -1, last_micro_batch = -1;
  for (const auto& row : rows)
    for (const ScheduleCell& c : row) {
      if (!c.action) continue;
      ++cells;
      last_stage = std::max(last_stage, c.stage);
      last_micro_batch = std::max(last_micro_batch, c.micro_batch);
    }
  const char* form = "write a row per rank, cells such as 2F0";
  if (cells == 0) throw UserError(source + ": holds no actions", form);
  // A mistyped number must not cost memory.
  if (last_stage >= cells || last_micro_batch >= cells)
    throw UserError(fmt::format("{}: {} actions are too few for stage {} and micro-batch {}",
                                source, cells, last_stage, last_micro_batch),
                    form);
  Schedule s{.name = "csv",
             .pp = int64_t(rows.size()),
             .stages = last_stage + 1,
             .micro_batches = last_micro_batch + 1};
  const std::string reason = schedule_fault(rows, s.pp, s.stages, s.micro_batches);
  if (!reason.empty()) throw UserError(source + ": " + reason, form);
  s.rank_of_stage.resize(size_t(s.stages));
  for (int64_t rank = 0; rank < s.pp; ++rank) {
    ActionList& list = s.ranks.emplace_back();
    for (const ScheduleCell& c : rows[size_t(rank)]) {
      if (!c.action) continue;
      s.rank_of_stage[size_t(c.stage)] = rank;
      list.push_back(action_of(c));
    }
  }
  if (const auto faults = schedule_faults(s); !faults.empty())
    throw UserError(source + ": " + faults[0], "put each action after those it depends on");
  return s;
}

Schedule schedule_from_csv(const std::string& path) {
  ScheduleRows rows;
  std::string reason;
  if (!parse_schedule_csv(read_file(path), rows, reason))
    throw UserError(path + ": " + reason, "write a row per rank, cells such as 2F0");
  return schedule_from_rows(rows, path);
}

Schedule schedule_of(const ScheduleShape& shape) {
  if (shape.table) return *shape.table;
  return make_schedule(enum_name(shape.schedule), schedule_size(shape));
}

}  // namespace mtrain
