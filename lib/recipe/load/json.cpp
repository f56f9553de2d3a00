#include <fmt/core.h>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "recipe/load/node.h"

namespace mtrain::recipe {

namespace {

using nlohmann::json;

constexpr int kMaxJsonDepth = 32;
constexpr size_t kLargest = size_t{1} << 22;  // bytes of a text

// Returns false if the value is nested too deep.
bool convert(const json& value, const SourceLocation& location, int depth, Node& out) {
  if (depth > kMaxJsonDepth) return false;
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
  // Each key and value is stored with its place, which takes far more memory than the text.
  if (text.size() > kLargest)
    return refuse(fmt::format("it has {}, and such a file has at most {}",
                              human_bytes(double(text.size())), human_bytes(double(kLargest))),
                  "it is not the file that was meant, or it is damaged");
  try {
    out = {};
    if (!convert(mtrain::parse_json(text, source), location, 0, out))
      return refuse(fmt::format("values are nested more than {} deep", kMaxJsonDepth), "");
  } catch (const UserError& e) {
    // The place of the diagnostic names the source already, so the message need not begin with it.
    const std::string name = source + ": ";
    return refuse(e.message().starts_with(name) ? e.message().substr(name.size()) : e.message(),
                  e.hint());
  }
  return true;
}

}  // namespace mtrain::recipe
