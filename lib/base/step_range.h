// A range of training steps, as in "10:20".
#pragma once
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace mtrain {

struct StepRange {
  int64_t first = 1, last = std::numeric_limits<int64_t>::max();  // both are part of the range
  bool contains(int64_t step) const { return first <= step && step <= last; }
  bool operator==(const StepRange&) const = default;
};

// Reads "10:20", "10:" (to the end), ":20" (from the start) or "10" (this step). Returns nothing
// for any other text, and for a range without a step.
inline std::optional<StepRange> parse_step_range(std::string_view text) {
  const auto number = [](std::string_view digits, int64_t& value) {
    const char* const end = digits.data() + digits.size();
    const auto [at, failure] = std::from_chars(digits.data(), end, value);
    return failure == std::errc() && at == end && value >= 1;
  };
  StepRange range;
  const size_t colon = text.find(':');
  const std::string_view first = text.substr(0, colon);
  if (colon == std::string_view::npos) {
    if (!number(first, range.first)) return {};
    range.last = range.first;
    return range;
  }
  const std::string_view last = text.substr(colon + 1);
  if (first.empty() && last.empty()) return {};
  if (!first.empty() && !number(first, range.first)) return {};
  if (!last.empty() && !number(last, range.last)) return {};
  if (range.first > range.last) return {};
  return range;
}

}  // namespace mtrain
