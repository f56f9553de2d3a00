// What the files and overrides set, before it is read by type: one entry per field, the last one
// that counts.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "recipe/node.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"

namespace mtrain {

struct Given {
  const SchemaRow* row;
  std::string spelling;  // the name that was written
  Place place;
  Node node;
  Origin origin;
};

struct GivenFields {
  std::map<std::string, Given, std::less<>> fields;  // by the field's own path
  std::set<std::string, std::less<>> sections;       // that are written, be it empty

  void merge(GivenFields&& over);  // what `over` says wins
};

// Dashes become underscores; a leading "cfg." is dropped.
std::string normalize_path(std::string_view path);

// The fields that a tree of sections sets.
GivenFields collect_fields(const Node& root, Origin origin, Problems& problems);

// "path=value" or "~path", on top of `given`. `source` names the override in messages.
void apply_override(const std::string& text, const std::string& source, Problems& problems,
                    GivenFields& given);

// Replaces ${env:NAME}, ${env:NAME,default} and ${section.field} in all values; `defaults` answers
// for fields that nobody sets.
void interpolate(GivenFields& given, const Recipe& defaults, Problems& problems);
void interpolate_field(std::string_view path, GivenFields& given, const Recipe& defaults,
                       Problems& problems);

// A spelling whose value is written in another way than the field's own.
struct Conversion {
  std::string_view path, target;
  // The text for the target; empty: there is nothing to set.
  std::string (*convert)(const std::string& text);
};
const std::vector<Conversion>& conversions();

}  // namespace mtrain
