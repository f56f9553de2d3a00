// A pipeline schedule that the recipe gives as a file: one row per rank, cells such as `2F0`
// (stage, action, micro-batch), empty where the rank is idle. Actions are F, B, I and W.
#pragma once
#include <string_view>
#include <vector>

#include "schedule/action.h"

namespace mtrain::plan {

using ScheduleRows = std::vector<schedule::ActionList>;  // by rank; idle cells are left out

// Throws UserError, which names the row and the cell that cannot be read or the row without
// actions.
ScheduleRows parse_schedule_csv(std::string_view text);

}  // namespace mtrain::plan
