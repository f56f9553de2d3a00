// JSON whose objects must not have a key twice. Only lib/storage includes this header.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace mtrain::storage {

// Parses `text`; throws json::exception. The parser silently keeps the last of two equal keys.
// Writes to `twice` a key that an object has twice, down to objects of this depth (1: the outermost
// one alone).
inline nlohmann::json parse_unique_keys(std::string_view text, int depth, std::string& twice) {
  using nlohmann::json;
  std::vector<std::set<std::string>> seen(size_t(depth) + 1);  // by depth
  return json::parse(text, [&](int at, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start && at < depth) seen[size_t(at) + 1].clear();
    if (event == json::parse_event_t::key && at <= depth &&
        !seen[size_t(at)].insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  });
}

}  // namespace mtrain::storage
