// Reads and prints an entry of debug.fault.
#include <algorithm>
#include <array>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/strings.h"
#include "recipe/load/value.h"
#include "recipe/schema/debug.h"

namespace mtrain::recipe {
namespace {

struct FaultPart {
  const char* name;
  bool (*read)(const Node&, FaultConfig&, ValueError&);
};
constexpr FieldOptions kRank{.min = 0}, kStep{.min = 1}, kFactor{.min = 1, .above_min = true};
constexpr std::array kFaultParts{
    FaultPart{"kind", [](const Node& n, auto& f, auto& e) { return read(n, {}, f.kind, e); }},
    FaultPart{"phase", [](const Node& n, auto& f, auto& e) { return read(n, {}, f.phase, e); }},
    FaultPart{"at", [](const Node& n, auto& f, auto& e) { return read(n, {}, f.at, e); }},
    FaultPart{"rank", [](const Node& n, auto& f, auto& e) { return read(n, kRank, f.rank, e); }},
    FaultPart{"step", [](const Node& n, auto& f, auto& e) { return read(n, kStep, f.step, e); }},
    FaultPart{"factor",
              [](const Node& n, auto& f, auto& e) { return read(n, kFactor, f.factor, e); }},
    FaultPart{"kill", [](const Node& n, auto& f, auto& e) { return read(n, {}, f.kill, e); }}};

std::vector<std::string> fault_keys() {
  std::vector<std::string> all;
  for (const FaultPart& p : kFaultParts) all.emplace_back(p.name);
  return all;
}

}  // namespace

bool read_value(const Node& node, const FieldOptions&, FaultConfig& out, ValueError& c) {
  if (node.kind != Node::Kind::map) {
    c.reason = fmt::format("expected a list of faults, each a mapping, got {}", describe(node));
    c.hint = "write them as [{kind: kill, phase: forward, rank: 1, step: 5}]";
    return false;
  }
  std::vector<std::string> wrong;
  const auto add = [&](std::string what, const std::string& hint) {
    wrong.push_back(std::move(what));
    if (c.hint.empty()) c.hint = hint;
  };
  FaultConfig f;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& key = node.keys[i].name;
    const auto* part = std::ranges::find(kFaultParts, key, &FaultPart::name);
    if (part == kFaultParts.end()) {
      const std::string meant = nearest(key, fault_keys());
      add(fmt::format("there is no key `{}`", key),
          meant.empty() ? fmt::format("known are {}", fmt::join(fault_keys(), ", "))
                        : fmt::format("did you mean `{}`?", meant));
      continue;
    }
    ValueError e;
    if (!part->read(node.items[i], f, e)) add(fmt::format("{}: {}", key, e.reason), e.hint);
  }
  if (wrong.empty()) {
    out = f;
    return true;
  }
  c.reason = fmt::format("{}", fmt::join(wrong, "; "));
  return false;
}

std::string show_value(const FaultConfig& f) {
  std::string s;
  const auto add = [&](const char* name, const std::string& value) {
    s += fmt::format("{}{}: {}", s.empty() ? "" : ", ", name, value);
  };
  if (f.kind) add("kind", show(*f.kind));
  if (f.phase) add("phase", show(*f.phase));
  if (f.at) add("at", show_value(*f.at));
  add("rank", show_value(f.rank));
  add("step", show_value(f.step));
  if (f.factor) add("factor", show_value(*f.factor));
  if (!f.kill) add("kill", "false");
  return "{" + s + "}";
}

}  // namespace mtrain::recipe
