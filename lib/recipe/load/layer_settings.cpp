#include "recipe/load/layer_settings.h"

#include <utility>

#include <fmt/core.h>

namespace mtrain::recipe {

Node plain_scalar(std::string_view text, const SourceLocation& location) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  node.location = location;
  return node;
}

void LayerSettings::add(const SchemaRow* row, std::string spelling, const SourceLocation& location,
                        Node node) {
  if (in_dump && node.unset()) return;
  RawSetting g{row, std::move(spelling), location, std::move(node), origin_};
  note_place(g);
  if (origin_ == Origin::recipe && !agrees_with_others(g)) return;
  note_replaced(g, given);
  given.fields.insert_or_assign(g.row->path, std::move(g));
}

void LayerSettings::note_place(const RawSetting& g) {
  diagnostics.set_location(g.row->path, g.location);
  if (const auto dot = g.spelling.find('.'); dot != std::string::npos)
    given.sections.insert(g.spelling.substr(0, dot));
}

// Compares the setting with those that this layer has made under other names. Returns false if the
// setting must be ignored, because another one has precedence.
bool LayerSettings::agrees_with_others(const RawSetting& g) {
  for (const ForeignSpelling& name : foreign_spellings()) {
    const auto part = name.part == Part::all || name.target != g.row->path
                          ? given.fields.end()
                          : given.fields.find(part_key(name));
    if (part == given.fields.end() || same_part(name, part->second, g)) continue;
    if (!in_dump) refuse_second(part->second, g);
    given.fields.erase(part);
  }
  const auto before = given.fields.find(g.row->path);
  if (before == given.fields.end()) return true;
  // AutoModel's recipes may have both `seed` and `rng.seed`. AutoModel uses `rng.seed`.
  const bool earlier = before->second.spelling == "seed" && g.spelling == "rng.seed";
  if (earlier || (before->second.spelling == "rng.seed" && g.spelling == "seed")) {
    diagnostics.add_at(Severity::resolved, g.location, "seed", "is not read beside rng.seed");
    return earlier;
  }
  if (g.node.unset() || before->second.node.unset()) return !g.node.unset();
  if (!same_value(before->second, g)) refuse_second(before->second, g);
  return true;
}

void LayerSettings::refuse_second(const RawSetting& before, const RawSetting& g) {
  diagnostics.add_at(
      Severity::error, g.location, g.row->path,
      fmt::format("is set twice to different values: `{}` ({}) at {} and `{}` ({}) here",
                  before.spelling, describe(before.node), before.location.str(), g.spelling,
                  describe(g.node)),
      "both names mean the same field; keep one of them");
}

void LayerSettings::add_part(const ForeignSpelling& name, const SourceLocation& location,
                             Node node) {
  if (in_dump && node.unset()) return;
  RawSetting g{find_row(name.target), std::string(name.path), location, std::move(node), origin_};
  const auto whole = given.fields.find(g.row->path);
  if (whole != given.fields.end() && !same_part(name, g, whole->second)) {
    // Each class of a dump lists its own switches, which may be off although the feature is on.
    if (in_dump) return;
    refuse_second(whole->second, g);
  }
  note_place(g);
  given.fields.insert_or_assign(part_key(name), std::move(g));
}

}  // namespace mtrain::recipe
