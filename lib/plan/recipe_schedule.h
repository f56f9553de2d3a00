// The pipeline schedule that a recipe asks for, by name or as a file.
#pragma once
#include <string>
#include <string_view>

#include "plan/schedule_csv.h"
#include "recipe/schema/distributed.h"
#include "schedule/action.h"
#include "schedule/catalog.h"

namespace mtrain::plan {

struct ScheduleShape;

// The name of a schedule as the recipe takes it (any case, torch's class names) -> its first name;
// other words as they are.
std::string schedule_name(const std::string& word);

const schedule::ScheduleKind& schedule_kind(recipe::PipelineScheduleName name);

// The rows of a table as a schedule of these sizes. UserError tells the first fault in it.
schedule::Schedule schedule_from_rows(const ScheduleRows& rows, int64_t stages,
                                      int64_t micro_batches);
// The same with as many stages and micro-batches as the rows name; `source` begins what is told.
schedule::Schedule schedule_from_text(std::string_view text, const std::string& source);
schedule::Schedule schedule_from_csv(const std::string& path);

// What each rank computes, without sends and receives. UserError for what cannot be run.
schedule::Schedule schedule_of(const ScheduleShape& shape);

}  // namespace mtrain::plan
