#include "base/terminal.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace mtrain {

namespace {
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_between(char32_t c, char32_t first, char32_t last) { return first <= c && c <= last; }

int width_of(char32_t c) {
  if (c == '\r' || is_between(c, 0x300, 0x36f) || is_between(c, 0x200b, 0x200f) ||
      is_between(c, 0xfe00, 0xfe0f))
    return 0;
  const bool wide = is_between(c, 0x1100, 0x115f) || is_between(c, 0x2e80, 0xa4cf) ||
                    is_between(c, 0xac00, 0xd7a3) || is_between(c, 0xf900, 0xfaff) ||
                    is_between(c, 0xfe30, 0xfe6f) || is_between(c, 0xff00, 0xff60) ||
                    is_between(c, 0xffe0, 0xffe6) || is_between(c, 0x1f300, 0x1f64f) ||
                    is_between(c, 0x1f900, 0x1f9ff) || is_between(c, 0x20000, 0x3fffd);
  return wide ? 2 : 1;
}

// Skips an escape code, or a code point with all its bytes. Returns its width in columns.
int next_cell(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.substr(at).starts_with("\x1b[")) {
    for (at += 2; at < text.size() && !is_between(byte(at), '@', '~');) ++at;
    at = std::min(at + 1, text.size());
    return 0;
  }
  const unsigned char first = byte(at++);
  char32_t c = first < 0xc0 ? first : first & (first < 0xe0 ? 0x1f : first < 0xf0 ? 0x0f : 0x07);
  for (; at < text.size() && (byte(at) & 0xc0) == 0x80; ++at) c = c << 6 | (byte(at) & 0x3f);
  return width_of(c);
}

// Adds `text`, which begins at column `begin` of the last line of `out`. Further lines begin at
// `indent`.
void wrap_from(std::string& out, std::string_view text, int begin, int indent, int columns) {
  while (true) {
    const size_t most = fit_columns(text, std::max(0, columns - begin)).size();
    if (most == text.size()) break;
    size_t blank = text.rfind(' ', most);
    if (blank == std::string_view::npos || blank == 0) blank = text.find(' ', 1);
    if (blank == std::string_view::npos) break;
    const size_t next = text.find_first_not_of(' ', blank);
    const size_t end = text.find_last_not_of(' ', blank);
    out += text.substr(0, end == std::string_view::npos ? 0 : end + 1);
    if (next == std::string_view::npos) return;
    out += '\n';
    out.append(size_t(indent), ' ');
    text.remove_prefix(next);
    begin = indent;
  }
  out += text;
}

void wrap_line(std::string& out, std::string_view line, int columns) {
  constexpr int kMinWidth = 24;  // smallest width of a second column beside the first
  const size_t lead = std::min(line.find_first_not_of(' '), line.size());
  constexpr size_t kDeep = 16;  // a line that begins this far to the right is part of a column
  const int indent = std::min(int(lead < kDeep ? lead + 2 : lead), columns / 2);
  const size_t gap = line.find("  ", lead);
  const size_t second = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
  out += line.substr(0, lead);
  line.remove_prefix(lead);
  if (second == std::string_view::npos) return wrap_from(out, line, int(lead), indent, columns);
  const std::string_view first_text = line.substr(0, gap - lead), rest = line.substr(second - lead);
  const int column = int(lead) + display_width(line.substr(0, second - lead));
  if (columns - column >= kMinWidth) {
    out += line.substr(0, second - lead);
    return wrap_from(out, rest, column, column, columns);
  }
  wrap_from(out, first_text, int(lead), indent, columns);
  out += '\n';
  const int below = std::min(int(lead) + 4, columns / 2);
  out.append(size_t(below), ' ');
  wrap_from(out, rest, below, below, columns);
}

// Splits at blanks outside quotes.
std::vector<std::string_view> words_of_command(std::string_view command) {
  std::vector<std::string_view> words;
  char quote = 0;
  size_t from = 0;
  for (size_t i = 0; i <= command.size(); ++i) {
    const char c = i < command.size() ? command[i] : ' ';
    if (quote && i < command.size()) {
      if (c == quote) quote = 0;
    } else if (c == '\\' && i + 1 < command.size()) {
      ++i;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == ' ') {
      if (i > from) words.push_back(command.substr(from, i - from));
      from = i + 1;
    }
  }
  return words;
}

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

int line_width(int fd) { return ::isatty(fd) ? terminal_width(fd) - 1 : 0; }

int display_width(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) columns += next_cell(text, at);
  return columns;
}

std::string_view fit_columns(std::string_view text, int columns) {
  int taken = 0;
  for (size_t at = 0, from = 0; at < text.size(); from = at) {
    taken += next_cell(text, at);
    if (taken > columns) return text.substr(0, from);
  }
  return text;
}

namespace {

// Returns the bytes of the character at `at`, and whether it is a control character.
std::pair<size_t, bool> next_character(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {1, first < ' ' || first == 0x7f};
  const size_t bytes = first < 0xc2 || first > 0xf4 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (bytes == 1 || at + bytes > text.size()) return {1, true};
  for (size_t i = 1; i < bytes; ++i)
    if ((byte(at + i) & 0xc0) != 0x80) return {1, true};
  return {bytes, first == 0xc2 && byte(at + 1) < 0xa0};
}

}  // namespace

bool is_printable(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto [bytes, control] = next_character(text, at);
    if (control) return false;
    at += bytes;
  }
  return true;
}

std::string printable(std::string_view text, size_t longest) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [bytes, control] = next_character(text, at);
    if (at + bytes > longest) return out + "...";
    out += control ? "?" : text.substr(at, bytes);
    at += bytes;
  }
  return out;
}

std::string wrap_words(std::string_view text, int columns) {
  if (columns <= 0) return std::string(text);
  std::string out;
  while (true) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (display_width(line) <= columns)
      out += line;
    else
      wrap_line(out, line, columns);
    if (line.size() == text.size()) return out;
    out += '\n';
    text.remove_prefix(line.size() + 1);
  }
}

std::string wrap_command(std::string_view command, int columns) {
  if (columns <= 0 || display_width(command) <= columns) return std::string(command);
  const size_t lead = std::min(command.find_first_not_of(' '), command.size());
  std::vector<std::string_view> words = words_of_command(command.substr(lead));
  const auto comment = std::ranges::find_if(words, [](auto word) { return word[0] == '#'; });
  std::string out, line(lead, ' ');
  if (comment != words.end()) {
    out = wrap_words(line + std::string(comment->data(), command.data() + command.size()), columns);
    for (size_t at = 0; (at = out.find('\n', at)) != std::string::npos;) out.insert(++at, "#");
    out += '\n';
    words.erase(comment, words.end());
  }
  constexpr int kEnd = 2;  // " \"
  const std::string indent(lead + 4, ' ');
  for (size_t i = 0; i < words.size(); ++i) {
    const bool begins = line.find_first_not_of(' ') == std::string::npos;
    const int end = i + 1 < words.size() ? kEnd : 0;
    if (!begins && display_width(line) + 1 + display_width(words[i]) + end > columns) {
      out += line + " \\\n";
      line = indent;
      line += words[i];
    } else {
      line += begins ? "" : " ";
      line += words[i];
    }
  }
  return out + line;
}

std::string fit_terminal(int fd, std::string_view text) { return wrap_words(text, line_width(fd)); }

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(size_t(n));
  }
}

}  // namespace mtrain
