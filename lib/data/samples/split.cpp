#include "data/samples/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/strings.h"

namespace mtrain::data {
namespace {

// Reads `5`, `-5`, `5%` or nothing. Returns false if the text is something else.
bool read_bound(std::string_view text, std::optional<Split::Bound>& out) {
  text = trim(text);
  if (text.empty()) return true;
  Split::Bound bound;
  if (text.back() == '%') bound.percent = true, text.remove_suffix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), bound.value);
  if (error != std::errc() || stop != text.data() + text.size()) return false;
  if (bound.percent && std::abs(bound.value) > 100) return false;
  out = bound;
  return true;
}

int64_t row_of(const Split::Bound& bound, int64_t rows) {
  const int64_t at =
      bound.percent ? int64_t(std::llround(double(rows) * double(bound.value) / 100)) : bound.value;
  return std::clamp<int64_t>(at < 0 ? rows + at : at, 0, rows);
}

}  // namespace

std::pair<int64_t, int64_t> Split::range(int64_t rows) const {
  const int64_t first = begin ? row_of(*begin, rows) : 0, last = end ? row_of(*end, rows) : rows;
  return {first, std::max(first, last)};
}

std::optional<Split> parse_split(std::string_view text) {
  text = trim(text);
  Split split;
  const size_t open = text.find('[');
  split.name = trim(text.substr(0, open));
  for (const char c : split.name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.')
      return std::nullopt;
  if (open == std::string_view::npos) return split;
  const size_t colon = text.find(':', open);
  if (colon == std::string_view::npos || text.back() != ']') return std::nullopt;
  if (!read_bound(text.substr(open + 1, colon - open - 1), split.begin) ||
      !read_bound(text.substr(colon + 1, text.size() - colon - 2), split.end))
    return std::nullopt;
  return split;
}

}  // namespace mtrain::data
