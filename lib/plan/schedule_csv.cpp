#include "plan/schedule_csv.h"

#include <algorithm>
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

std::string text_of(const ScheduleCell& c) {
  return fmt::format("{}{}{}", c.stage, c.action, c.micro_batch);
}

// Plays rows that are complete, each in its order; says where a rank would wait for ever.
std::string deadlock(const ScheduleRows& rows, int64_t stages, int64_t micro_batches) {
  std::vector<char> done[2];  // forwards, and input gradients; by stage and micro-batch
  for (auto& way : done) way.resize(size_t(stages * micro_batches));
  const auto at = [&](int64_t stage, int64_t m) { return size_t(stage * micro_batches + m); };
  // The stage whose result it takes; -1 for none.
  const auto before = [&](const ScheduleCell& c) {
    if (c.action == 'W') return int64_t(-1);
    return c.action == 'F' ? c.stage - 1 : c.stage + 1 < stages ? c.stage + 1 : -1;
  };
  std::vector<size_t> next(rows.size());
  const auto advances = [&](size_t rank) {
    if (next[rank] == rows[rank].size()) return false;
    const ScheduleCell& c = rows[rank][next[rank]];
    const bool back = c.action != 'F';
    if (c.action && before(c) >= 0 && !done[back][at(before(c), c.micro_batch)]) return false;
    if (c.action && c.action != 'W') done[back][at(c.stage, c.micro_batch)] = true;
    ++next[rank];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < rows.size(); ++rank)
      while (advances(rank)) moved = true;
  }
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (next[rank] == rows[rank].size()) continue;
    const ScheduleCell& c = rows[rank][next[rank]];
    return fmt::format(
        "{} in row {}, cell {} would wait for ever for the {} of stage {} (deadlock)", text_of(c),
        rank + 1, next[rank] + 1, c.action == 'F' ? "output" : "gradient", before(c));
  }
  return "";
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
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (std::ranges::none_of(rows[rank], &ScheduleCell::action))
      return fmt::format("row {} holds no actions: every rank needs a stage", rank + 1);
    for (const ScheduleCell& c : rows[rank]) {
      if (!c.action) continue;
      const std::string cell = text_of(c);
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
  }
  for (int64_t s = 0; s < stages; ++s)
    for (int64_t m = 0; m < micro_batches; ++m) {
      const auto at = seen.find({s, m});
      const std::string done = at == seen.end() ? "" : at->second;
      if (done != "FB" && done != "FIW")
        return fmt::format("stage {} ends micro-batch {} after `{}`, instead of FB or FIW", s, m,
                           done);
    }
  return deadlock(rows, stages, micro_batches);
}

}  // namespace mtrain
