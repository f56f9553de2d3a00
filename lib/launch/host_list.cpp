#include "launch/host_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain::launch {

namespace {

// A part of a name: a text, or the values of a bracket.
struct NamePart {
  std::string text;
  struct Range {
    int64_t first = 0, last = 0;
    size_t width = 0;  // of a number, with leading zeros
  };
  std::vector<Range> ranges = {};

  int64_t count() const {
    int64_t n = ranges.empty() ? 1 : 0;
    for (const Range& r : ranges) n += r.last - r.first + 1;
    return n;
  }
  std::string value(int64_t index) const {
    for (const Range& r : ranges) {
      const int64_t count = r.last - r.first + 1;
      if (index < count) return fmt::format("{:0{}}", r.first + index, r.width);
      index -= count;
    }
    return text;
  }
};

UserError malformed(std::string_view list, std::string_view part) {
  return UserError(fmt::format("{}: `{}` is not a list of hosts as Slurm writes it", list, part),
                   "such as n[1-3,7],m[01-03]x[1-2]");
}

std::optional<int64_t> number_in(std::string_view digits) {
  constexpr size_t kMostDigits = 10;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  const bool well = !digits.empty() && digits.size() <= kMostDigits && digits.front() != '-' &&
                    error == std::errc() && end == digits.data() + digits.size();
  return well ? std::optional(n) : std::nullopt;
}

std::optional<NamePart> parse_bracket(std::string_view inside) {
  NamePart part;
  for (const std::string& word : split(inside, ',')) {
    const size_t dash = word.find('-');
    const std::string low = word.substr(0, dash),
                      high = dash == std::string::npos ? low : word.substr(dash + 1);
    const auto first = number_in(low), last = number_in(high);
    if (!first || !last || *last < *first || *last - *first >= int64_t(kMostHosts))
      return std::nullopt;
    part.ranges.push_back({*first, *last, low.size()});
  }
  return part;
}

// Splits a name such as m[01-03]x[1-2].
std::vector<NamePart> parse_name(std::string_view list, std::string_view name) {
  std::vector<NamePart> parts;
  for (size_t at = 0; at < name.size();) {
    const size_t open = std::min(name.find('[', at), name.size());
    const std::string_view text = name.substr(at, open - at);
    if (text.find(']') != std::string_view::npos) throw malformed(list, name);
    if (!text.empty()) parts.push_back({.text = std::string(text)});
    if (open == name.size()) break;
    const size_t close = name.find(']', open);
    if (close == std::string_view::npos) throw malformed(list, name);
    auto bracket = parse_bracket(name.substr(open + 1, close - open - 1));
    if (!bracket) throw malformed(list, name);
    parts.push_back(std::move(*bracket));
    at = close + 1;
  }
  return parts;
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view list, size_t most) {
  std::vector<std::string> hosts;
  for (size_t at = 0; at <= list.size() && hosts.size() < most;) {
    // The comma after a name; those in brackets belong to the name.
    size_t end = at;
    for (bool inside = false; end < list.size() && (inside || list[end] != ','); ++end)
      inside = list[end] == '[' || (inside && list[end] != ']');
    const std::string_view name = list.substr(at, end - at);
    const std::vector<NamePart> parts = parse_name(list, name);
    if (parts.empty()) throw malformed(list, name);
    int64_t count = 1;
    for (const NamePart& part : parts) {
      count *= part.count();
      if (count > int64_t(kMostHosts)) throw malformed(list, name);
    }
    for (int64_t i = 0; i < count && hosts.size() < most; ++i) {
      std::string host;
      int64_t rest = i;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        host.insert(0, part->value(rest % part->count()));
        rest /= part->count();
      }
      hosts.push_back(std::move(host));
    }
    at = end + 1;
  }
  return hosts;
}

}  // namespace mtrain::launch
