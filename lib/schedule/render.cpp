#include "schedule/render.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace mtrain::schedule {

double shortest_action(const Timeline& timeline) {
  double shortest = timeline.step;
  for (const auto& rank : timeline.times)
    for (const ActionTime& t : rank)
      if (t.end > t.begin) shortest = std::min(shortest, t.end - t.begin);
  return std::max(shortest, timeline.step / 4000);
}

namespace {

// Draws the full row of a rank, with `per_unit` columns for a unit of time. The rest of an action
// of more than `cell_columns` columns is filled with dashes.
std::string row_of(const ActionList& list, const std::vector<ActionTime>& times, double per_unit,
                   double step, size_t cell_columns) {
  std::string row(size_t(std::llround(step * per_unit)), '.');
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_compute(list[i].kind)) continue;
    const auto begin = size_t(std::llround(times[i].begin * per_unit));
    const auto end = size_t(std::llround(times[i].end * per_unit));
    if (end <= begin || end > row.size()) continue;
    std::string cell = to_string(list[i]);
    cell.resize(end - begin, end - begin > cell_columns ? '-' : ' ');
    cell.back() = ' ';
    row.replace(begin, cell.size(), cell);
  }
  return row;
}

// Draws the exchanges of a rank; the letter shows the pass.
std::string exchanges_of(const ActionList& list, const std::vector<ExchangeTime>& exchanges,
                         double per_unit, double step) {
  std::string row(size_t(std::llround(step * per_unit)), '.');
  for (const ExchangeTime& e : exchanges) {
    const auto begin = size_t(std::llround(e.begin * per_unit));
    const auto end = std::min(row.size(), size_t(std::llround(e.end * per_unit)));
    for (size_t i = begin; i < end; ++i) row[i] = list[e.action].kind == ActionKind::F ? 'f' : 'b';
  }
  return row;
}

}  // namespace

bool has_exchanges(const Timeline& timeline) {
  return std::any_of(timeline.exchanges.begin(), timeline.exchanges.end(),
                     [](const auto& rank) { return !rank.empty(); });
}

std::string schedule_text(const Schedule& s, const Timeline& timeline, int64_t columns) {
  size_t label = 0;
  for (const ActionList& list : s.ranks)
    for (const Action& a : list)
      if (is_compute(a.kind)) label = std::max(label, to_string(a).size());
  const double unit = shortest_action(timeline);
  const double per_unit = unit > 0 ? double(label + 1) / unit : 0;
  std::vector<std::string> rows, heads;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    rows.push_back(row_of(s.ranks[rank], timeline.times[rank], per_unit, timeline.step, label + 1));
    heads.push_back(fmt::format("rank {}", rank));
    if (!has_exchanges(timeline)) continue;
    rows.push_back(exchanges_of(s.ranks[rank], timeline.exchanges[rank], per_unit, timeline.step));
    heads.push_back("  ep");
  }
  const std::string last_head = fmt::format("rank {} ", s.ranks.size() - 1);
  const size_t whole = rows.empty() ? 0 : rows[0].size();
  // A part never splits a cell of the shortest action.
  size_t part = whole;
  if (columns > 0) {
    const int64_t room = columns - int64_t(last_head.size());
    part = std::max<size_t>(1, size_t(std::max<int64_t>(0, room)) / (label + 1)) * (label + 1);
  }
  std::string text;
  for (size_t from = 0; from < whole; from += part) {
    if (part < whole)
      text += fmt::format("{}from {:g}\n", from ? "\n" : "", double(from) / per_unit);
    for (size_t row = 0; row < rows.size(); ++row) {
      std::string line =
          fmt::format("{:<{}}", heads[row], last_head.size()) + rows[row].substr(from, part);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  return text;
}

std::string schedule_csv(const Schedule& s) {
  std::string text;
  for (const ActionList& list : s.ranks) {
    std::string row;
    for (const Action& a : list)
      if (is_compute(a.kind)) row += (row.empty() ? "" : ",") + to_string(a);
    text += row + "\n";
  }
  return text;
}

}  // namespace mtrain::schedule
