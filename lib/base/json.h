// The only reader of JSON. A text may come from an untrusted source: no text can exhaust the stack
// or the memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mtrain {

// Limits. No JSON file of a model, a run or a trace needs more.
inline constexpr size_t kDeepestJson = 64;                 // nested objects and lists
inline constexpr size_t kMaxJsonValues = size_t{1} << 22;  // a text with this many takes 500 MB
inline constexpr int64_t kLargestJson = int64_t{1} << 27;  // bytes of a file

// Parses a complete text. Throws UserError of the form "NAME: not JSON at byte N: why". It also
// throws for a duplicate key in an object, since programs differ in which of the two values they
// take.
nlohmann::json parse_json(std::string_view text, const std::string& name,
                          const std::string& hint = "");

// As parse_json(), but the keys of objects keep their order.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& name,
                                          const std::string& hint = "");

// As parse_json(), but passes the objects to `take` one by one: the tree of a large text is then
// never complete in memory. `take` gets each object when it is complete, with the number of
// enclosing objects and lists. If it returns true, the object is removed from the enclosing one.
using TakeJsonObject = std::function<bool(size_t depth, nlohmann::json& object)>;
void parse_json_objects(std::string_view text, const std::string& name, const TakeJsonObject& take);

// Parses a regular file of at most kLargestJson bytes.
nlohmann::json read_json(const std::filesystem::path& path, const std::string& hint = "");

}  // namespace mtrain
