#include "base/text_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain {

namespace {

constexpr int kGap = 2;

using Cells = std::vector<std::string>;

std::string aligned(const std::vector<TableColumn>& columns, const std::vector<int>& widths,
                    const Cells& cells) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string blanks(size_t(widths[i] - display_width(cells[i])), ' ');
    const bool left = columns[i].align == TableColumn::Align::left;
    if (left)
      line += cells[i] + blanks;
    else
      line += blanks + cells[i];
    if (i + 1 < columns.size() && columns[i + 1].align == TableColumn::Align::left)
      line.append(kGap, ' ');
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string stacked(const std::vector<TableColumn>& columns, const Cells& cells, int width) {
  const auto named = [&](size_t i, const char* between) {
    return columns[i].head.empty() ? cells[i] : columns[i].head + between + cells[i];
  };
  std::string rest;
  for (size_t i = 1; i < columns.size(); ++i)
    if (!cells[i].empty()) rest += (rest.empty() ? "  " : ", ") + named(i, ": ");
  return wrap_words(named(0, " "), width) + "\n" +
         (rest.empty() ? "" : wrap_words(rest, width) + "\n");
}

}  // namespace

std::string text_table(const std::vector<TableColumn>& columns, const std::vector<Cells>& rows,
                       int width) {
  Cells heads;
  for (const TableColumn& column : columns) heads.push_back(column.head);
  std::vector<int> widths(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    const bool gap = i > 0 && columns[i].align == TableColumn::Align::right;
    const auto fit = [&](const Cells& cells) {
      MT_CHECK(cells.size() == columns.size(), "a row of {} cells", cells.size());
      widths[i] = std::max(widths[i], display_width(cells[i]) + (gap ? kGap : 0));
    };
    widths[i] = columns[i].least;
    fit(heads);
    for (const Cells& row : rows) fit(row);
  }
  std::string text = aligned(columns, widths, heads);
  for (const Cells& row : rows) text += aligned(columns, widths, row);
  if (width <= 0 || wrap_words(text, width) == text) return text;
  text.clear();
  for (const Cells& row : rows) text += stacked(columns, row, width);
  return text;
}

std::string markdown_for_terminal(const std::string& markdown, int width) {
  std::string out;
  std::vector<Cells> table;  // the first row contains the heads
  const auto end_table = [&] {
    if (table.empty()) return;
    std::vector<TableColumn> columns;
    for (const std::string& head : table[0]) columns.push_back({head, 0, TableColumn::Align::left});
    table.erase(table.begin());
    out += text_table(columns, std::exchange(table, {}), width);
  };
  std::vector<std::string> lines = split(markdown, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) {
    if (!line.starts_with('|')) {
      end_table();
      out += wrap_words(line, width) + "\n";
      continue;
    }
    Cells cells;
    std::string cell;
    for (size_t i = 1; i < line.size(); ++i) {
      if (line[i] == '\\' && i + 1 < line.size() && line[i + 1] == '|') {
        cell += line[++i];
      } else if (line[i] == '|') {
        cells.emplace_back(trim(cell));
        cell.clear();
      } else {
        cell += line[i];
      }
    }
    const bool rule = line.find_first_not_of("|-: ") == std::string::npos;
    if (rule) continue;
    if (!table.empty()) cells.resize(table[0].size());
    table.push_back(std::move(cells));
  }
  end_table();
  return out;
}

}  // namespace mtrain
