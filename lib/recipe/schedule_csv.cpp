#include "recipe/schedule_csv.h"

#include <charconv>
#include <map>

#include <fmt/core.h>

#include "base/strings.h"

namespace mtrain {

namespace {

bool parse_cell(std::string_view text, ScheduleCell& cell) {
  const char* end = text.data() + text.size();
  const auto stage = std::from_chars(text.data(), end, cell.stage);
  if (stage.ec != std::errc() || stage.ptr == end) return false;
  cell.action = *stage.ptr;
  if (std::string_view("FBIW").find(cell.action) == std::string_view::npos) return false;
  const auto micro = std::from_chars(stage.ptr + 1, end, cell.micro_batch);
  return micro.ec == std::errc() && micro.ptr == end && cell.stage >= 0 && cell.micro_batch >= 0;
}

}  // namespace

bool parse_schedule_csv(std::string_view text, ScheduleRows& rows, std::string& reason) {
  rows.clear();
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty()) return true;
  for (const std::string& line : split(text, '\n')) {
    auto& row = rows.emplace_back();
    for (const std::string& word : split(line, ',')) {
      ScheduleCell cell;
      const std::string_view written = trim(word);
      if (!written.empty() && !parse_cell(written, cell)) {
        reason = fmt::format(
            "row {}, cell {}: `{}` is no action; write stage, F, B, I or W, and micro-batch: 2F0",
            rows.size(), row.size() + 1, written.substr(0, 40));
        return false;
      }
      row.push_back(cell);
    }
  }
  return true;
}

std::string schedule_fault(const ScheduleRows& rows, int64_t ranks, int64_t stages,
                           int64_t micro_batches) {
  if (int64_t(rows.size()) != ranks)
    return fmt::format("has {} rows, but pp_size is {}", rows.size(), ranks);
  std::map<std::pair<int64_t, int64_t>, std::string> seen;  // (stage, micro-batch): actions so far
  std::map<int64_t, int64_t> home;                          // of a stage
  for (size_t rank = 0; rank < rows.size(); ++rank)
    for (const ScheduleCell& c : rows[rank]) {
      if (!c.action) continue;
      const std::string cell = fmt::format("{}{}{}", c.stage, c.action, c.micro_batch);
      if (c.stage >= stages)
        return fmt::format("{} in row {}: there are {} stages", cell, rank + 1, stages);
      if (c.micro_batch >= micro_batches)
        return fmt::format("{} in row {}: there are {} micro-batches", cell, rank + 1,
                           micro_batches);
      const auto [at, first] = home.try_emplace(c.stage, int64_t(rank));
      if (!first && at->second != int64_t(rank))
        return fmt::format("stage {} stands in rows {} and {}", c.stage, at->second + 1, rank + 1);
      std::string& done = seen[{c.stage, c.micro_batch}];
      const bool follows = c.action == 'F'   ? done.empty()
                           : c.action == 'W' ? done == "FI"
                                             : done == "F";  // B or I
      if (!follows)
        return fmt::format("{} in row {} comes after `{}` of the same stage and micro-batch", cell,
                           rank + 1, done);
      done += c.action;
    }
  for (int64_t s = 0; s < stages; ++s)
    for (int64_t m = 0; m < micro_batches; ++m) {
      const auto at = seen.find({s, m});
      const std::string done = at == seen.end() ? "" : at->second;
      if (done != "FB" && done != "FIW")
        return fmt::format("stage {} ends micro-batch {} after `{}`, instead of FB or FIW", s, m,
                           done);
    }
  return "";
}

}  // namespace mtrain
