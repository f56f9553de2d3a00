// The pipeline schedule that a recipe asks for, by name or as a file.
#pragma once
#include "plan/layout.h"
#include "plan/schedule_csv.h"
#include "schedule/action.h"

namespace mtrain {

struct ScheduleShape;

// The name of a schedule as the recipe takes it (any case, torch's class names) -> its first name;
// other words as they are.
std::string schedule_name(const std::string& word);

// As many stages and micro-batches as the rows name. UserError, which `source` begins, if the rows
// cannot be run.
Schedule schedule_from_rows(const ScheduleRows& rows, const std::string& source);
Schedule schedule_from_csv(const std::string& path);

// What each rank computes, without sends and receives. UserError for what cannot be run.
Schedule schedule_of(const ScheduleShape& shape);

}  // namespace mtrain
