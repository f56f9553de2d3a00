// Reads and prints an entry of optimizer.groups.
#include <algorithm>
#include <array>
#include <regex>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/value.h"
#include "recipe/schema/optimizer.h"

namespace mtrain::recipe {
namespace {

struct Part {
  const char* name;
  bool (*read)(const Node&, OptimizerGroup&, ValueError&);
};
constexpr FieldOptions kNotNegative{.min = 0};
constexpr std::array kParts{
    Part{"match", [](const Node& n, auto& g, auto& e) { return read(n, {}, g.match, e); }},
    Part{"lr", [](const Node& n, auto& g, auto& e) { return read(n, kNotNegative, g.lr, e); }},
    Part{"lr_scale",
         [](const Node& n, auto& g, auto& e) { return read(n, kNotNegative, g.lr_scale, e); }},
    Part{"weight_decay",
         [](const Node& n, auto& g, auto& e) { return read(n, kNotNegative, g.weight_decay, e); }},
    Part{"name", [](const Node& n, auto& g, auto& e) { return read(n, {}, g.name, e); }}};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Part& p : kParts) all.emplace_back(p.name);
  return all;
}

// Returns what is wrong with a regular expression; empty if nothing is.
std::string expression_fault(const std::string& text) {
  try {
    const std::regex expression(text);
  } catch (const std::regex_error& e) {
    return fmt::format("match: `{}` is not a regular expression: {}", text, e.what());
  }
  return {};
}

}  // namespace

bool read_value(const Node& node, const FieldOptions&, OptimizerGroup& out, ValueError& c) {
  if (node.kind != Node::Kind::map) {
    c.reason = fmt::format("expected a list of groups, each a mapping, got {}", describe(node));
    c.hint = "write them as [{match: embedding, lr_scale: 0.5}]";
    return false;
  }
  std::vector<std::string> faults;
  const auto add = [&](std::string fault, std::string hint) {
    faults.push_back(std::move(fault));
    if (c.hint.empty()) c.hint = std::move(hint);
  };
  OptimizerGroup g;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& key = node.keys[i].name;
    const auto part = std::ranges::find(kParts, key, &Part::name);
    if (part == kParts.end()) {
      const std::string meant = nearest(key, names());
      add(fmt::format("there is no key `{}`", key),
          meant.empty() ? "known are match, lr, lr_scale, weight_decay and name"
                        : fmt::format("did you mean `{}`?", meant));
      continue;
    }
    ValueError e;
    if (!part->read(node.items[i], g, e)) add(fmt::format("{}: {}", key, e.reason), e.hint);
  }
  if (g.match.empty())
    add("a group needs `match`", "write the parameters it is for: {match: embedding, ...}");
  if (const std::string fault = expression_fault(g.match); !fault.empty())
    add(fault, "put a \\ before characters such as ( or * that stand for themselves");
  if (g.lr && g.lr_scale) add("lr and lr_scale set the same", "give one of them");
  if (faults.empty() && !g.lr && !g.lr_scale && !g.weight_decay && !g.name)
    add("it changes nothing",
        "give it lr, lr_scale, weight_decay or name; lr_scale: 1 keeps what it matches out of the "
        "groups after it");
  if (faults.empty()) {
    out = g;
    return true;
  }
  c.reason = fmt::format("group `{}`: ", g.match);
  for (size_t i = 0; i < faults.size(); ++i) c.reason += (i ? "; " : "") + faults[i];
  return false;
}

std::string show_value(const OptimizerGroup& g) {
  std::string s = "{match: " + show_value(g.match);
  const auto add = [&](const char* name, const auto& value) {
    if (value) s += fmt::format(", {}: {}", name, show(*value));
  };
  add("lr", g.lr), add("lr_scale", g.lr_scale), add("weight_decay", g.weight_decay);
  add("name", g.name);
  return s + "}";
}

}  // namespace mtrain::recipe
