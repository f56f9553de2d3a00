// RawSettings holds what files and overrides set, before values are read by their types. It has one
// entry per field; later layers replace it.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
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

// Returns what follows the last dot of a path.
inline std::string_view last_word(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0
}

// Compares what two spellings of a field say, as the field's type reads them.
bool same_value(const RawSetting& a, const RawSetting& b);

struct RawSettings {
  // By the field's own path, or by part_key() for a name that says a part of a field's value.
  std::map<std::string, RawSetting, std::less<>> fields;
  // Values for fields that nobody sets, from a class that a recipe names by _target_.
  std::map<std::string, RawSetting, std::less<>> defaults;
  std::set<std::string, std::less<>> sections;  // sections that are written, empty too
  // What this layer takes away from what has been set before, as drop() reads it.
  struct Replaced {
    std::string what;
    // Overrides are one layer: this leaves the values of earlier ones, which rules compare.
    bool leaves_overrides = false;
    SourceLocation location = {};  // known where the user must be told
  };
  std::vector<Replaced> replaced;
  // Values of foreign keys that rules hold against fields, by the key's path.
  std::map<std::string, std::string, std::less<>> foreign;

  // Lays `over` on this: its entries win, and mappings are merged key by key.
  void merge(RawSettings&& over, Diagnostics& diagnostics);
  // Removes a field ("optimizer.lr"), a section ("recompute.*"), the fields that a name has set
  // ("model.bf16"), or the defaults of a section's class ("class optimizer"). Returns whether there
  // were any.
  bool drop(std::string_view what, bool leave_overrides = false);
};

// Replaces dashes by underscores, drops a leading "cfg.", takes "model.config." for "model." and
// "autopipeline" for "distributed.pipeline".
std::string normalize_path(std::string_view path);

// Returns the fields that a tree of sections sets.
RawSettings flatten_fields(const ModelSource& models, const Node& root, Origin origin,
                           Diagnostics& diagnostics);

// Returns what one override sets. A path without a section means the only field of that name, as
// Megatron's flags do.
RawSettings flatten_override(const ModelSource& models, const std::string& path,
                             const SourceLocation& location, const Node& value,
                             Diagnostics& diagnostics);

// Applies "path=value" or "~path" to `given`. Messages call the override `source`.
void apply_override(const ModelSource& models, const std::string& text, const std::string& source,
                    Diagnostics& diagnostics, RawSettings& given);

// Reads what is set into a recipe that is named `source`, and fills in what follows from it.
// `saved_model` is as read_recipe() says.
Recipe build_recipe(const ModelSource& models, RawSettings given, const std::string& source,
                    Diagnostics& diagnostics, const std::string& saved_model = {});

// Whether an override sets variables for the ranks, whose values no message may quote.
bool holds_secrets(std::string_view override);

// Returns the paths that a name without a section may mean: the fields one of whose names ends in
// it, each by the first such name.
std::vector<std::string> paths_of_word(const std::string& word);
// Returns the row that a negated name sets: Megatron's no_align_param_gather: true means
// align_param_gather: false. Returns null if there is none.
const SchemaRow* negated_row(const std::string& path);

// Whether a command line's name without a section means a field, or a key of another system.
bool names_setting(std::string_view word);

// Replaces ${env:NAME}, ${env:NAME,default} and ${section.field} in all values. A field that nobody
// sets has its value in `defaults`. `references` takes what has been replaced, by field.
void interpolate(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics,
                 std::map<std::string, std::string, std::less<>>& references);
// Does it for the path of a base, which may refer to variables alone.
bool interpolate_base(Node& base, Diagnostics& diagnostics);
void interpolate_field(std::string_view path, RawSettings& given, const Recipe& defaults,
                       Diagnostics& diagnostics);

// What a name of another system says of its field.
enum class Part {
  all,       // the field's value, which convert() gives
  choice,    // true: the value `on`; false: not that value, but `off` where the field has it
  toggle,    // true: what the field has, or `on` where it has `off`; false: `off`
  beta,      // one of the two decays
  function,  // the activation's function
  gate,      // whether the activation has a gate
  rate       // the value, unless a toggle of the field is false
};

// A name of another system whose value must be converted to that of the field `target`. A name that
// decides several fields has a row for each.
struct ForeignSpelling {
  std::string_view path, target;
  // Returns the text for the target.
  std::string (*convert)(const std::string& text) = nullptr;
  Part part = Part::all;
  std::string_view on = {}, off = {};
};
const std::vector<ForeignSpelling>& foreign_spellings();
// Returns the key under which RawSettings holds what this name says of its field.
std::string part_key(const ForeignSpelling& name);

// Notes in `layer` what the setting takes away from the layers below it: the table of values that
// stand for several fields.
void note_replaced(const RawSetting& setting, RawSettings& layer);
// Whether a part of a field's value says the same as the field's whole value.
bool same_part(const ForeignSpelling& name, const RawSetting& part, const RawSetting& whole);
// Completes the fields of `recipe` of which parts are given, once all other fields are read.
void apply_parts(const RawSettings& given, Recipe& recipe, Diagnostics& diagnostics);

// A word of mixed_precision.name that stands for several settings in Megatron-Bridge.
struct PrecisionPreset {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> sets;  // field, value
  std::string_view left_out;  // what upstream sets besides, and why it is not followed; or empty
};
// Returns the preset of that name, which may have dashes; null if there is none.
const PrecisionPreset* find_precision_preset(std::string_view name);

}  // namespace mtrain::recipe
