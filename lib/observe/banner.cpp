#include "observe/banner.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/terminal.h"

namespace mtrain::observe {

namespace {

constexpr int kIndent = 2, kGap = 2;
constexpr int kNarrowest = 20;  // columns of a text, however narrow the terminal is

// Returns the lines of `text`, each at most `columns` wide. Longer lines are split at blanks, and
// words longer than a line anywhere.
std::vector<std::string_view> wrap(std::string_view text, int columns) {
  std::vector<std::string_view> lines;
  while (true) {
    const auto newline = text.find('\n');
    std::string_view line = fit_columns(text.substr(0, newline), columns);
    if (line.size() == text.size()) {
      lines.push_back(line);
      return lines;
    }
    const bool whole = line.size() == newline;
    if (!whole && text[line.size()] != ' ')
      if (const auto blank = line.rfind(' '); blank != std::string_view::npos && blank > 0)
        line = line.substr(0, blank);
    lines.push_back(line);
    text.remove_prefix(line.size());
    if (text.front() == '\n') {
      text.remove_prefix(1);
    } else {
      while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
      if (text.empty()) return lines;
    }
  }
}

}  // namespace

std::string banner(std::string_view title, const std::vector<BannerRow>& rows, int width) {
  int labels = 0;
  for (const auto& row : rows) labels = std::max(labels, display_width(row.label));
  const int column = kIndent + labels + kGap;
  std::string out(title);
  out += '\n';
  for (const auto& row : rows) {
    std::string left = std::string(kIndent, ' ') + row.label;
    left.append(size_t(column - kIndent - display_width(row.label)), ' ');
    for (const auto line : wrap(row.text, std::max(kNarrowest, width - column))) {
      out += fmt::format("{}{}\n", left, line);
      left.assign(size_t(column), ' ');
    }
  }
  return out;
}

void print_banner(int fd, std::string_view title, const std::vector<BannerRow>& rows) {
  const std::string bold =
      wants_color(fd) ? fmt::format("\x1b[1m{}\x1b[0m", title) : std::string(title);
  // One column stays free, since some terminals wrap when the last column is filled.
  write_all(fd, banner(bold, rows, terminal_width(fd) - 1));
}

}  // namespace mtrain::observe
