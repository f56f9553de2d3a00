// JSON whose objects must not have a key twice: programs differ in which of two values they take.
// The including library links nlohmann_json itself.
#pragma once
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

namespace mtrain {

// Parses `text`; throws json::exception. Writes to `twice` the path of a key that an object has
// twice, such as "model.vocab.a"; the value is that of the last one. Files that programs write are
// not nested deeper than is looked at here.
inline nlohmann::json parse_unique_keys(std::string_view text, std::string& twice) {
  using nlohmann::json;
  struct Level {
    std::unordered_set<std::string> seen;  // keys of the open object of this depth
    std::string key;                       // the last of them; empty in a list
  };
  constexpr size_t kDeepest = 64;
  std::vector<Level> levels;
  return json::parse(text, [&](int at, json::parse_event_t event, json& value) {
    const auto depth = size_t(at);
    if (depth >= kDeepest) return true;
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      levels.resize(depth + 1);
      levels[depth] = {};
    } else if (event == json::parse_event_t::key) {
      Level& level = levels[depth - 1];
      level.key = value.get<std::string>();
      if (level.seen.insert(level.key).second || !twice.empty()) return true;
      for (size_t i = 0; i < depth; ++i)
        if (!levels[i].key.empty()) twice += (twice.empty() ? "" : ".") + levels[i].key;
    }
    return true;
  });
}

}  // namespace mtrain
