// The one way to read JSON, which may come from anybody: nothing that a text holds can exhaust the
// stack or the memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mtrain {

// No JSON file of a model, a run or a trace needs more.
inline constexpr size_t kDeepestJson = 64;                  // objects and lists in each other
inline constexpr size_t kMostJsonValues = size_t{1} << 22;  // of which the largest takes 500 MB
inline constexpr int64_t kLargestJson = int64_t{1} << 27;   // bytes of a file

// Parses a whole text. Throws UserError of the form "NAME: not JSON at byte N: why", and for a key
// that an object has twice, since programs differ in which of the two values they take.
nlohmann::json parse_json(std::string_view text, const std::string& name,
                          const std::string& hint = "");

// As parse_json(), but hands out objects one by one, so that the tree of a large text never stands
// in memory. `take` gets each object at its end, with the number of objects and lists around it. If
// it returns true the object is dropped from what is around it.
using TakeJsonObject = std::function<bool(size_t depth, nlohmann::json& object)>;
void parse_json_objects(std::string_view text, const std::string& name, const TakeJsonObject& take);

// Parses a regular file of at most kLargestJson bytes.
nlohmann::json read_json(const std::filesystem::path& path, const std::string& hint = "");

}  // namespace mtrain
