#include "plan/schedule_csv.h"

#include <charconv>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain::plan {

namespace {

constexpr const char* kForm = "write a row per rank, cells such as 2F0";

bool parse_kind(char letter, schedule::ActionKind& kind) {
  switch (letter) {
    case 'F': kind = schedule::ActionKind::F; return true;
    case 'B': kind = schedule::ActionKind::B; return true;
    case 'I': kind = schedule::ActionKind::I; return true;
    case 'W': kind = schedule::ActionKind::W; return true;
    default: return false;
  }
}

bool parse_cell(std::string_view text, schedule::Action& action) {
  const char* end = text.data() + text.size();
  const auto stage = std::from_chars(text.data(), end, action.stage);
  if (stage.ec != std::errc() || stage.ptr == end || !parse_kind(*stage.ptr, action.kind))
    return false;
  const auto micro = std::from_chars(stage.ptr + 1, end, action.micro_batch);
  return micro.ec == std::errc() && micro.ptr == end && action.stage >= 0 &&
         action.micro_batch >= 0;
}

schedule::ActionList parse_row(const std::string& line, size_t number) {
  schedule::ActionList row;
  const std::vector<std::string> cells = split(line, ',');
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string_view written = trim(cells[i]);
    if (written.empty()) continue;
    schedule::Action action{schedule::ActionKind::F};
    if (!parse_cell(written, action))
      throw UserError(fmt::format("row {}, cell {}: `{}` is not an action; write stage, F, B, I or "
                                  "W, and micro-batch: 2F0",
                                  number, i + 1, written.substr(0, 40)),
                      kForm);
    row.push_back(action);
  }
  if (row.empty())
    throw UserError(fmt::format("row {} holds no actions: every rank needs a stage", number),
                    kForm);
  return row;
}

}  // namespace

ScheduleRows parse_schedule_csv(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  ScheduleRows rows;
  if (text.empty()) return rows;
  for (const std::string& line : split(text, '\n'))
    rows.push_back(parse_row(line, rows.size() + 1));
  return rows;
}

}  // namespace mtrain::plan
