#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

constexpr size_t kMaxText = 64 << 10, kMaxNodes = 20000;

size_t count_nodes(const Node& node) {
  size_t n = 1;
  for (const auto& item : node.items) n += count_nodes(item);
  return n;
}

class Interpolator {
 public:
  Interpolator(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics)
      : given_(given), defaults_(defaults), diagnostics_(diagnostics) {}

  // Replaces every ${...} in a field's node. If one cannot be replaced, says why and leaves the
  // field unset.
  bool field(const std::string& path) {
    const auto at = given_.fields.find(path);
    if (at == given_.fields.end() || done_.count(path)) return true;
    if (std::find(open_.begin(), open_.end(), path) != open_.end()) return cycle(path);
    open_.push_back(path);
    const bool ok = resolve(at->second.node, at->second);
    open_.pop_back();
    if (ok) {
      done_.insert(path);
    } else {
      given_.fields.erase(path);
    }
    return ok;
  }

 private:
  bool fail(std::string reason, std::string hint) {
    // A failure is reported once, for the field that holds the failing reference.
    diagnostics_.add_at(Severity::error, current_->location, current_->row->path, std::move(reason),
                        std::move(hint));
    return false;
  }

  bool cycle(const std::string& path) {
    std::string chain;
    for (auto i = std::find(open_.begin(), open_.end(), path); i != open_.end(); ++i)
      chain += *i + " -> ";
    return fail(fmt::format("the references run in a circle: {}{}", chain, path),
                "give one of these fields a value");
  }

  bool resolve(Node& node, const RawSetting& owner) {
    for (auto& item : node.items)
      if (!resolve(item, owner)) return false;
    if (node.kind != Node::Kind::scalar || node.text.find("${") == std::string::npos) return true;
    std::string out;
    std::string_view rest = node.text;
    while (!rest.empty()) {
      const auto start = rest.find("${");
      if (start == std::string_view::npos) break;
      if (start > 0 && rest[start - 1] == '$') {  // $${ is a literal ${
        out += std::string(rest.substr(0, start - 1)) + "${";
        rest.remove_prefix(start + 2);
        continue;
      }
      current_ = &owner;
      const auto end = rest.find('}', start);
      if (end == std::string_view::npos)
        return fail(fmt::format("`{}` has no closing brace", rest.substr(start)), "write ${name}");
      Node value;
      if (!look_up(std::string(trim(rest.substr(start + 2, end - start - 2))), owner, value))
        return false;
      if (node.text.size() == end - start + 1) {  // the whole value is one reference
        value.location = node.location;
        node = std::move(value);
        return true;
      }
      if (value.kind == Node::Kind::list || value.kind == Node::Kind::map)
        return fail(fmt::format("{} stands inside a text", describe(value)),
                    "refer to a field with a single value");
      out += std::string(rest.substr(0, start)) + value.text;
      rest.remove_prefix(end + 1);
      if (out.size() > kMaxText) return fail("the text grows beyond 64 KiB", "");
    }
    node.text = out + std::string(rest);
    return true;
  }

  bool look_up(const std::string& name, const RawSetting& owner, Node& out) {
    out.kind = Node::Kind::scalar;
    if (name.rfind("env:", 0) == 0) {
      const auto comma = name.find(',');
      const std::string variable(trim(std::string_view(name).substr(4, comma - 4)));
      if (const char* value = std::getenv(variable.c_str())) {
        out.text = value;
        return true;
      }
      if (comma != std::string::npos) {
        out.text = std::string(trim(std::string_view(name).substr(comma + 1)));
        return true;
      }
      return fail(fmt::format("the environment variable {} is not set", variable),
                  fmt::format("set it, or give a default: ${{env:{},value}}", variable));
    }
    const std::string path = normalize_path(name);
    const SchemaRow* row = find_row(path);
    if (!row) {
      const std::string meant = nearest_key(path);
      return fail(fmt::format("${{{}}} refers to a field that does not exist", name),
                  meant.empty() ? "" : fmt::format("did you mean ${{{}}}?", meant));
    }
    if (!field(row->path)) return false;
    current_ = &owner;
    if (const auto at = given_.fields.find(row->path); at != given_.fields.end()) {
      out = at->second.node;
      copied_ += count_nodes(out);
      if (copied_ > kMaxNodes) return fail("the references expand to too many values", "");
      return true;
    }
    return parse_yaml(row->show(defaults_), "default", diagnostics_, out);
  }

  RawSettings& given_;
  const Recipe& defaults_;
  Diagnostics& diagnostics_;
  std::vector<std::string> open_;
  std::set<std::string> done_;
  const RawSetting* current_ = nullptr;
  size_t copied_ = 0;
};

}  // namespace

void interpolate_field(std::string_view path, RawSettings& given, const Recipe& defaults,
                       Diagnostics& diagnostics) {
  Interpolator(given, defaults, diagnostics).field(std::string(path));
}

void interpolate(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics) {
  std::vector<std::string> paths;
  for (const auto& [path, field] : given.fields) paths.push_back(path);
  Interpolator interpolator(given, defaults, diagnostics);
  for (const auto& path : paths) interpolator.field(path);
}

}  // namespace mtrain::recipe
