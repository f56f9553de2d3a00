// A pipeline schedule that the recipe gives as a file: one row per rank, cells such as `2F0`
// (stage, action, micro-batch), empty where the rank is idle.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain {

struct ScheduleCell {
  int64_t stage = 0, micro_batch = 0;
  // F forward, B backward, I and W its two halves: input and weight gradient. 0: idle.
  char action = 0;
};

using ScheduleRows = std::vector<std::vector<ScheduleCell>>;  // [rank][time]

// False, with the row, column and fault in `reason`, where a cell cannot be read.
bool parse_schedule_csv(std::string_view text, ScheduleRows& rows, std::string& reason);

// What is missing from, or too much in, a schedule of these sizes; empty if every stage sits on one
// rank and does each micro-batch once: F, then B or I and W, and no rank waits for ever.
std::string schedule_fault(const ScheduleRows& rows, int64_t ranks, int64_t stages,
                           int64_t micro_batches);

}  // namespace mtrain
