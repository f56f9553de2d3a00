// RawSettings holds what files and overrides set, before values are read by their types. It has one
// entry per field, which later layers replace.
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
  bool of_only_item = false;  // the node has some keys of a list's only item
};

// Returns what follows the last dot of a path.
inline std::string_view last_word(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0
}

// Whether two settings of a field have the same value after it is read by the field's type.
bool same_value(const RawSetting& a, const RawSetting& b);

struct RawSettings {
  // By the field's own path, or by part_key() for a name that decides a part of a field's value.
  std::map<std::string, RawSetting, std::less<>> fields;
  // Values for fields that the recipe does not set, from a class that it names by _target_.
  std::map<std::string, RawSetting, std::less<>> defaults;
  std::set<std::string, std::less<>> sections;  // sections that are written, empty too
  // The class that a section names by _target_, if it is known.
  std::map<std::string, std::string, std::less<>> classes;
  // Settings of the layers below that this layer removes.
  struct Replaced {
    std::string what;  // as drop() reads it
    // Whether earlier overrides keep their values: rules compare the overrides with each other.
    bool leaves_overrides = false;
    SourceLocation location = {};  // if known, the removal is reported there
  };
  std::vector<Replaced> replaced;
  // Whether the recipe is one of AutoModel: it chooses a trainer (`recipe:`), or a model or data
  // set of nemo_automodel.
  bool automodel = false;
  // Values of other systems' keys that are compared with fields, by the key's path.
  std::map<std::string, std::string, std::less<>> foreign;

  // Merges the layer `over` into this one. Its entries win; mappings are merged key by key.
  void merge(RawSettings&& over, Diagnostics& diagnostics);
  // Removes a field ("optimizer.lr"), a section ("recompute.*"), the fields that a name has set
  // ("model.bf16"), or the defaults of a section's class ("class optimizer"). Returns whether it
  // removed any.
  bool drop(std::string_view what, bool leave_overrides = false);
};

// Replaces dashes by underscores and drops a leading "cfg.". Replaces "model.config." by "model.",
// and older names of sections by those of today, as kOlderSections lists them.
std::string normalize_path(std::string_view path);

// Returns the fields that a tree of sections sets.
RawSettings flatten_fields(const ModelSource& models, const Node& root, Origin origin,
                           Diagnostics& diagnostics);

// Returns the field that an argument of a section's class sets: dataset.split is one of squad.
// Other paths are returned unchanged.
std::string path_of_argument(const ModelSource& models, const RawSettings& given,
                             const std::string& path);

// Returns what one override sets. A path without a section means the only field of that name, as in
// Megatron's flags.
RawSettings flatten_override(const ModelSource& models, const std::string& path,
                             const SourceLocation& location, const Node& value,
                             Diagnostics& diagnostics);

// Applies "path=value" or "~path" to `given`. `source` is the override's name in messages.
void apply_override(const ModelSource& models, const std::string& text, const std::string& source,
                    Diagnostics& diagnostics, RawSettings& given);

// Builds the recipe named `source` from its settings, and derives the values that follow from them.
// See read_recipe() for `saved_model`.
Recipe build_recipe(const ModelSource& models, RawSettings given, const std::string& source,
                    Diagnostics& diagnostics, const std::string& saved_model = {});

// Whether an override sets environment variables of the ranks. No message may quote their values.
bool holds_secrets(std::string_view override);

// Returns the paths that `word`, a name without a section, may mean: for each field the first of
// its names whose last part is the word. If there is none, returns the first such foreign spelling.
std::vector<std::string> paths_of_word(const std::string& word);
// Returns the row that a negated name sets: Megatron's no_align_param_gather: true means
// align_param_gather: false. Returns null if there is none.
const SchemaRow* negated_row(const std::string& path);

// Whether a command line's name without a section means a field, or a key of another system.
bool names_setting(std::string_view word);

// Replaces ${env:NAME}, ${env:NAME,default} and ${section.field} in all values. A field that is not
// set has its value in `defaults`. Adds the references of each field, as written, to `references`.
void interpolate(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics,
                 std::map<std::string, std::string, std::less<>>& references);
// Replaces the references in the path of a base, which may only be to environment variables.
bool interpolate_base(Node& base, Diagnostics& diagnostics);
// Replaces the references in one field.
void interpolate_field(std::string_view path, RawSettings& given, const Recipe& defaults,
                       Diagnostics& diagnostics);

// How the value of another system's name decides its field.
enum class Part {
  all,       // the field's value, which convert() gives
  choice,    // true sets `on`; false replaces the value `on` by `off`, and keeps other values
  toggle,    // true replaces the value `off` by `on`, and keeps other values; false sets `off`
  beta,      // one of the two decays
  function,  // the activation's function
  gate,      // whether the activation has a gate
  rate,      // the value, which a toggle of the field may then turn off
  margin     // the value for one direction; the field has the larger one of both
};

// A name of another system whose value must be converted to that of the field `target`. A name that
// decides several fields has one row for each field.
struct ForeignSpelling {
  std::string_view path, target;
  // Returns the text for the target.
  std::string (*convert)(const std::string& text) = nullptr;
  Part part = Part::all;
  std::string_view on = {}, off = {};
};
const std::vector<ForeignSpelling>& foreign_spellings();
// Returns the key under which RawSettings holds the part of a field that this name decides.
std::string part_key(const ForeignSpelling& name);

// Records in `layer` which settings of the layers below are replaced by this one: the parts of its
// field, and other fields by the table compounds() in layers.cpp.
void note_replaced(const RawSetting& setting, RawSettings& layer);
// Whether the setting of a part of a field agrees with `whole`, a setting of the full value.
bool same_part(const ForeignSpelling& name, const RawSetting& part, const RawSetting& whole);
// Sets the fields of `recipe` whose parts are given. All other fields must have been read.
void apply_parts(const RawSettings& given, Recipe& recipe, Diagnostics& diagnostics);

// A word of mixed_precision.name that stands for several settings in Megatron-Bridge.
struct PrecisionPreset {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> sets;  // field, value
  std::string_view left_out;  // what upstream also sets and mtrain does differently; or empty
};
// Returns the preset of that name, in any case and with dashes or underscores; or null.
const PrecisionPreset* find_precision_preset(std::string_view name);

}  // namespace mtrain::recipe
