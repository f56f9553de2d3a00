// What the files and overrides set, before it is read by type: one entry per field, the last one
// that counts.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "recipe/load/node.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {

struct RawSetting {
  const SchemaRow* row;
  std::string spelling;  // the name that was written
  SourceLocation location;
  Node node;
  Origin origin;
};

struct RawSettings {
  std::map<std::string, RawSetting, std::less<>> fields;  // by the field's own path
  std::set<std::string, std::less<>> sections;            // that are written, be it empty

  void merge(RawSettings&& over);  // what `over` says wins
};

// Dashes become underscores; a leading "cfg." is dropped.
std::string normalize_path(std::string_view path);

// The fields that a tree of sections sets.
RawSettings flatten_fields(const Node& root, Origin origin, Diagnostics& diagnostics);

// "path=value" or "~path", on top of `given`. `source` names the override in messages.
void apply_override(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                    RawSettings& given);

// Replaces ${env:NAME}, ${env:NAME,default} and ${section.field} in all values; `defaults` answers
// for fields that nobody sets.
void interpolate(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics);
void interpolate_field(std::string_view path, RawSettings& given, const Recipe& defaults,
                       Diagnostics& diagnostics);

// A spelling whose value is written in another way than the field's own.
struct ForeignSpelling {
  std::string_view path, target;
  // The text for the target; empty: there is nothing to set.
  std::string (*convert)(const std::string& text);
};
const std::vector<ForeignSpelling>& foreign_spellings();

}  // namespace mtrain::recipe
