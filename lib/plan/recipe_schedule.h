// Makes the pipeline schedule that a recipe asks for by name or as a file.
#pragma once
#include <string>
#include <string_view>

#include "plan/schedule_csv.h"
#include "recipe/schema/distributed.h"
#include "schedule/action.h"
#include "schedule/catalog.h"

namespace mtrain::plan {

struct ScheduleShape;

// Returns mtrain's name of the schedule that a recipe calls `word` (in any case, or by torch's
// class name). Returns other words unchanged.
std::string schedule_name(const std::string& word);

// Makes a schedule of these sizes from the rows of a table. Throws UserError, which names the first
// fault.
schedule::Schedule schedule_from_rows(const ScheduleRows& rows, int64_t stages,
                                      int64_t micro_batches);
// Do the same. The numbers of stages and micro-batches follow from the rows. Messages begin with
// `source`, or with the path.
schedule::Schedule schedule_from_text(std::string_view text, const std::string& source);
schedule::Schedule schedule_from_csv(const std::string& path);

// Returns what each rank computes, without sends and receives. Throws UserError if the shape has a
// size that its schedule cannot have.
schedule::Schedule schedule_of(const ScheduleShape& shape);

}  // namespace mtrain::plan
