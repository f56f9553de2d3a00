#include "recipe/print/explain_recipe.h"

#include <algorithm>

#include <fmt/core.h>

#include "recipe/load/foreign_keys.h"
#include "recipe/load/node.h"
#include "recipe/load/raw_settings.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

class Explainer {
 public:
  Explainer(const std::string& name, const Recipe& recipe, const Diagnostics& diagnostics)
      : name_(name), recipe_(recipe), notes_(diagnostics.sorted()) {
    for (const SchemaRow& row : schema_rows())
      if (const SourceLocation at = diagnostics.location_of(row.path);
          recipe.spellings.contains(row.path) && at.source == name)
        places_.push_back({&row, at});
  }

  void walk(const Node& node, const std::string& prefix, std::string_view around) {
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const Node::Key& key = node.keys[i];
      const std::string path = prefix.empty() ? key.name : prefix + "." + key.name;
      const Node& item = node.items[i];
      const bool section = is_section(item);
      const std::string own = outcome(path, key.location, item, !around.empty());
      const std::string& text = own.empty() ? std::string(around) : own;
      if (!section || !own.empty())
        keys.push_back({path, key.location.line,
                        !text.empty()  ? text
                        : item.unset() ? "nothing is set"
                                       : "is not read"});
      // A class of data is read as a whole: its arguments are parts of what it sets.
      const std::string whole = section ? whole_section(path, key.location) : "";
      if (section && (own.empty() || !whole.empty())) walk(item, path, whole);
    }
  }

  std::vector<KeyOutcome> keys;

 private:
  struct Place {
    const SchemaRow* row;
    SourceLocation at;
  };

  static bool is_section(const Node& item) {
    return item.kind == Node::Kind::map && !item.items.empty();
  }
  static bool same(const SourceLocation& a, const SourceLocation& b) {
    return a.source == b.source && a.line == b.line && a.column == b.column;
  }

  // Returns what the key at this place sets, or what was reported there; empty if neither is known.
  // A section's outcome is in notes about the section itself, not in those about keys it leaves
  // out.
  std::string outcome(const std::string& path, const SourceLocation& at, const Node& item,
                      bool inside) const {
    const bool section = is_section(item);
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
    for (const Place& place : places_)
      if ((!section && same(place.at, at)) || recipe_.spellings.at(place.row->path) == path)
        add(fmt::format("{}: {}", place.row->path, place.row->show(recipe_)));
    for (const Diagnostic& note : notes_)
      if (same(note.location, at) && (!section || note.field == normalize_path(path)) &&
          (text.empty() || note.severity != Severity::resolved))
        add(note.severity == Severity::error ? "error: " + note.reason : note.reason);
    // The keys of a section have their own outcomes; parts of another key have that key's.
    if (!text.empty() || section || inside) return text;
    if (const SchemaRow* row = find_row(normalize_path(path)); row && recipe_.given(row->path))
      return fmt::format("{}: {}", row->path, row->show(recipe_));  // set by another key, too
    if (path.ends_with("._target_")) return "the class is known, and sets nothing itself";
    const ForeignKey* key = find_foreign_key(normalize_path(path));
    if (!key) return "";
    if (key->severity == Severity::resolved) return fmt::format("no effect: {}", key->reason);
    if (key->kept || item.unset() || (key->harmless && key->harmless(item)))
      return "as in mtrain, so nothing is set";
    return key->severity == Severity::error ? fmt::format("error: {}", key->reason)
                                            : std::string(key->reason);  // "is ignored: ..."
  }

  // Returns the settings of a section that was read as a whole, such as a class of data.
  std::string whole_section(const std::string& path, const SourceLocation& at) const {
    std::string text;
    for (const Place& place : places_)
      if (place.at.line == at.line && recipe_.spellings.at(place.row->path) == path)
        text += (text.empty() ? "part of " : ", ") + place.row->path;
    return text;
  }

  const std::string& name_;
  const Recipe& recipe_;
  std::vector<Diagnostic> notes_;
  std::vector<Place> places_;
};

}  // namespace

std::vector<KeyOutcome> explain_recipe(const std::string& text, const std::string& name,
                                       const Recipe& recipe, const Diagnostics& diagnostics) {
  Node root;
  Diagnostics ignored;
  if (!parse_yaml(text, name, ignored, root)) return {};
  Explainer explainer(name, recipe, diagnostics);
  explainer.walk(root, "", "");
  return std::move(explainer.keys);
}

}  // namespace mtrain::recipe
