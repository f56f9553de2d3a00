#include "plan/recipe_schedule.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/schedule_bounds.h"
#include "recipe/load/value.h"
#include "recipe/recipe.h"
#include "schedule/validator.h"

namespace mtrain::plan {

std::string schedule_name(const std::string& word) {
  for (const auto& entry : enum_names(ScheduleId{}))
    if (recipe::fold_name(entry.name) == recipe::fold_name(word))
      return std::string(enum_name(entry.value));
  return word;
}

schedule::Schedule schedule_from_rows(const ScheduleRows& rows, int64_t stages,
                                      int64_t micro_batches) {
  int64_t actions = 0;
  for (const schedule::ActionList& row : rows) actions += int64_t(row.size());
  // A mistyped number must not cost memory.
  if (micro_batches > 0 && stages > actions / micro_batches)
    throw UserError(fmt::format("{} actions are too few for {} stages and {} micro-batches",
                                actions, stages, micro_batches));
  schedule::Schedule s{.name = "csv",
                       .pp = int64_t(rows.size()),
                       .stages = stages,
                       .micro_batches = micro_batches,
                       .rank_of_stage = {},
                       .ranks = rows};
  // A stage that no row names gets the rank stage % pp, on which the validator reports it.
  for (int64_t stage = 0; stage < stages; ++stage) s.rank_of_stage.push_back(stage % s.pp);
  // A stage that two rows name belongs to the first of them.
  for (int64_t rank = s.pp - 1; rank >= 0; --rank)
    for (const schedule::Action& a : rows[size_t(rank)])
      if (a.stage < stages) s.rank_of_stage[size_t(a.stage)] = rank;
  if (const auto faults = schedule_faults(s); !faults.empty()) throw UserError(faults[0]);
  return s;
}

schedule::Schedule schedule_from_text(std::string_view text, const std::string& source) {
  try {
    const ScheduleRows rows = parse_schedule_csv(text);
    int64_t actions = 0, last_stage = -1, last_micro_batch = -1;
    for (const schedule::ActionList& row : rows)
      for (const schedule::Action& a : row) {
        ++actions;
        last_stage = std::max(last_stage, a.stage);
        last_micro_batch = std::max(last_micro_batch, a.micro_batch);
      }
    if (actions == 0) throw UserError("holds no actions");
    if (last_stage >= actions || last_micro_batch >= actions)
      throw UserError(fmt::format("{} actions are too few for stage {} and micro-batch {}", actions,
                                  last_stage, last_micro_batch));
    return schedule_from_rows(rows, last_stage + 1, last_micro_batch + 1);
  } catch (const UserError& e) {
    throw UserError(source + ": " + e.message(),
                    "write a row per rank, cells such as 2F0, each action after those it needs");
  }
}

schedule::Schedule schedule_from_csv(const std::string& path) {
  return schedule_from_text(read_file(path), path);
}

schedule::Schedule schedule_of(const ScheduleShape& shape) {
  if (shape.table) return *shape.table;
  return make_schedule(schedule::schedule_kind(shape.schedule), schedule_size(shape));
}

}  // namespace mtrain::plan
