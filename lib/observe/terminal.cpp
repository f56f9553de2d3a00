#include "observe/terminal.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/strings.h"

namespace mtrain::observe {

namespace {
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
bool starts_code_point(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }
}  // namespace

bool is_live_terminal(int fd) {
  const auto term = environment("TERM"), ci = environment("CI");
  return ::isatty(fd) && !term.empty() && term != "dumb" && (ci.empty() || ci == "false");
}

bool wants_color(int fd) { return is_live_terminal(fd) && environment("NO_COLOR").empty(); }

bool is_pipe(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

int terminal_width(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const int columns = std::atoi(std::string(environment("COLUMNS")).c_str());
  return columns > 0 ? columns : 80;
}

int terminal_height(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const std::string locale = to_lower(environment(name)); !locale.empty())
      return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return false;
}

int display_width(std::string_view text) {
  int columns = 0;
  for (char c : text) columns += starts_code_point(c);
  return columns;
}

std::string_view fit_columns(std::string_view text, int columns) {
  int seen = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (starts_code_point(text[i]) && seen++ >= columns) return text.substr(0, i);
  return text;
}

std::string wrap_words(std::string_view text, int columns) {
  constexpr int kIndent = 2;
  std::string out;
  while (true) {
    std::string_view line = text.substr(0, text.find('\n'));
    const size_t whole = line.size();
    for (int indent = 0; display_width(line) > columns - indent; indent = kIndent) {
      size_t blank = line.rfind(' ', fit_columns(line, columns - indent).size());
      const size_t first = line.find_first_not_of(' ');
      if (blank == std::string_view::npos || blank < first) blank = line.find(' ', first);
      if (blank == std::string_view::npos) break;
      out += line.substr(0, blank);
      out += "\n  ";
      line.remove_prefix(std::min(line.find_first_not_of(' ', blank), line.size()));
    }
    out += line;
    if (whole == text.size()) return out;
    out += '\n';
    text.remove_prefix(whole + 1);
  }
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(size_t(n));
  }
}

}  // namespace mtrain::observe
