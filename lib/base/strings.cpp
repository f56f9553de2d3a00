#include "base/strings.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include <fmt/core.h>

namespace mtrain {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view trim(std::string_view text) {
  const char* blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

namespace {
int decimals_for_three_digits(double n) { return n < 9.995 ? 2 : n < 99.95 ? 1 : 0; }
}  // namespace

std::string human_count(double n) {
  const char* units[] = {"", "K", "M", "B", "T", "P", "E"};
  int u = 0;
  while (n >= 999.5 && u < 6) n /= 1000, ++u;
  if (u == 0) return fmt::format("{:.0f}", n);
  return fmt::format("{:.{}f}{}", n, decimals_for_three_digits(n), units[u]);
}

std::string human_bytes(double n) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int u = 0;
  while (n >= 1023.5 && u < 5) n /= 1024, ++u;
  return fmt::format("{:.{}f} {}", n, u == 0 ? 0 : decimals_for_three_digits(n), units[u]);
}

std::string human_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "?";  // NaN, negative, or absurdly long
  const auto s = int64_t(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
}

namespace {
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}
}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // Words of two letters allow one edit: two edits turn any of them into any other.
  size_t best_distance = word.size() <= 2 ? 2 : std::max<size_t>(2, word.size() / 3) + 1;
  for (const auto& c : candidates) {
    if (const size_t d = edit_distance(word, c); d < best_distance) best_distance = d, best = c;
  }
  return best;
}

}  // namespace mtrain
