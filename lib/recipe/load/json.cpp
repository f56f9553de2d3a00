#include <fmt/core.h>

#include "base/json_keys.h"
#include "recipe/load/node.h"

namespace mtrain::recipe {

namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

// Returns false if the value is nested too deep.
bool convert(const json& value, const SourceLocation& location, int depth, Node& out) {
  if (depth > kMaxDepth) return false;
  out.location = location;
  if (value.is_null()) return true;
  if (!value.is_structured()) {
    out.kind = Node::Kind::scalar;
    out.quoted = value.is_string();
    out.text = out.quoted ? value.get<std::string>() : value.dump();
    return true;
  }
  out.kind = value.is_object() ? Node::Kind::map : Node::Kind::list;
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) out.keys.push_back({key, location});
    if (!convert(item, location, depth + 1, out.items.emplace_back())) return false;
  }
  return true;
}

}  // namespace

bool parse_json(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                Node& out) {
  const SourceLocation location{source, 0, 0};
  const auto refuse = [&](const std::string& reason, const std::string& hint) {
    diagnostics.add_at(Severity::error, location, "", reason, hint);
    return false;
  };
  std::string twice;
  try {
    out = {};
    if (!convert(parse_unique_keys(text, twice), location, 0, out))
      return refuse(fmt::format("values are nested more than {} deep", kMaxDepth), "");
  } catch (const json::exception& e) {
    return refuse(fmt::format("this is not a JSON object: {}", e.what()), "");
  }
  if (!twice.empty())
    return refuse(fmt::format("the key `{}` is given twice", twice), "keep one of the two");
  return true;
}

}  // namespace mtrain::recipe
