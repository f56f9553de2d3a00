#include "recipe/load/key_reports.h"

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/word_hints.h"

namespace mtrain::recipe {
namespace {

constexpr int kMaxUnknown = 50;

// Whether a value turns off the feature that its key names.
bool says_off(const Node& node) {
  if (node.kind == Node::Kind::map || node.kind == Node::Kind::list) return node.items.empty();
  const std::string word = to_lower(node.text);
  return node.unset() || word == "false" || word == "no" || word == "off" || word == "0";
}

}  // namespace

void KeyReports::foreign(const ForeignKey& key, const std::string& path,
                         const SourceLocation& location, const Node& node) {
  if (key.severity == Severity::error && node.unset()) return;
  if (key.kept && !node.unset()) {
    layer_.given.foreign[std::string(key.path)] = node.text;
    layer_.diagnostics.set_location(key.path, location);
  }
  if (key.harmless && key.harmless(node)) return;
  // Each key of a section whose value decides asks for something else.
  const bool by_value = key.harmless && key.severity == Severity::warning;
  if (!reported_.insert(by_value ? path : std::string(key.path)).second) return;
  layer_.diagnostics.add_at(key.severity, location, path,
                            key.severity == Severity::resolved
                                ? fmt::format("has no effect in mtrain: {}", key.reason)
                                : std::string(key.reason),
                            std::string(key.hint));
}

void KeyReports::fields_off() {
  if (off_ > 0)
    layer_.diagnostics.add_at(
        Severity::resolved, off_location_, "",
        fmt::format("{} fields of Megatron that mtrain does not have are off", off_));
}

void KeyReports::unknown(const std::string& path, const SourceLocation& location) {
  if (++refused_ > kMaxUnknown) return;
  layer_.diagnostics.add_at(Severity::error, location, path, "there is no such key",
                            hint_for_unknown(path));
  if (refused_ == kMaxUnknown)
    layer_.diagnostics.add_at(Severity::error, location, path,
                              "further unknown keys are not listed",
                              "is this file a recipe of mtrain?");
}

void KeyReports::hydra_option(const std::string& name, const SourceLocation& location) {
  if (hydra_warned_) return;
  hydra_warned_ = true;
  layer_.diagnostics.add_at(
      Severity::warning, location, name,
      "_recursive_, _convert_ and _partial_ are ignored: no class is constructed");
}

bool KeyReports::count_off(const SourceLocation& location, const Node& node) {
  if (!says_off(node)) return false;
  if (off_ == 0) off_location_ = location;
  ++off_;
  return true;
}

}  // namespace mtrain::recipe
