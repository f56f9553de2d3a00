// What `mtrain report` shows of a trace: a step's timeline, the pipeline as run and as drawn, and
// the steps of each rank.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

#include "observe/report.h"

namespace mtrain {

// Adds the pictures of a step; unset: the last one. `recipe` is the file of the run's recipe, by
// which the pipeline is drawn; it need not exist. Throws UserError if the trace cannot be read or
// does not have the step.
void add_trace(observe::ReportInput& input, const std::filesystem::path& trace,
               std::optional<int64_t> step, const std::filesystem::path& recipe);

}  // namespace mtrain
