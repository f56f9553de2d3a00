// RawSettings holds what files and overrides set, before values are read by their types. It has one
// entry per field; later sources replace it.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recipe/load/node.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {

struct RawSetting {
  const SchemaRow* row;
  std::string spelling;  // the name under which the field was written
  SourceLocation location;
  Node node;
  Origin origin;
};

// Compares what two spellings of a field say, as the field's type reads them.
bool same_value(const RawSetting& a, const RawSetting& b);

struct RawSettings {
  std::map<std::string, RawSetting, std::less<>> fields;  // by the field's own path
  // Values for fields that nobody sets, from a class that a recipe names by _target_.
  std::map<std::string, RawSetting, std::less<>> defaults;
  std::set<std::string, std::less<>> sections;  // sections that are written, empty too

  void merge(RawSettings&& over);  // entries of `over` win
};

// Replaces dashes by underscores, drops a leading "cfg.", and takes "model.config." for "model.".
std::string normalize_path(std::string_view path);

// Returns the fields that a tree of sections sets.
RawSettings flatten_fields(const Node& root, Origin origin, Diagnostics& diagnostics);

// Applies "path=value" or "~path" to `given`. A path without a section means the only field of that
// name, as Megatron's flags do. Messages call the override `source`.
void apply_override(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                    RawSettings& given);

// Whether a command line's name without a section means a field, or a key of another system.
bool names_setting(std::string_view word);

// Replaces ${env:NAME}, ${env:NAME,default} and ${section.field} in all values. A field that nobody
// sets has its value in `defaults`.
void interpolate(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics);
void interpolate_field(std::string_view path, RawSettings& given, const Recipe& defaults,
                       Diagnostics& diagnostics);

// A name of another system whose value must be converted to that of the field `target`. A name that
// decides several fields has a row for each.
struct ForeignSpelling {
  std::string_view path, target;
  // Returns the text for the target; an empty text sets nothing.
  std::string (*convert)(const std::string& text);
};
const std::vector<ForeignSpelling>& foreign_spellings();

// A word of mixed_precision.name that stands for several settings in Megatron-Bridge.
struct PrecisionPreset {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> sets;  // field, value
  std::string_view left_out;  // what upstream sets besides, and why it is not followed; or empty
};
// Returns the preset of that name, which may have dashes; null if there is none.
const PrecisionPreset* find_precision_preset(std::string_view name);

}  // namespace mtrain::recipe
