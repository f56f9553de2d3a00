#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/load/automodel.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/node.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/resolve.h"
#include "recipe/load/value.h"
#include "recipe/model_source.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

namespace fs = std::filesystem;

// Returns the value after the field's options have replaced none and, for sizes, 0 and -1.
Node value_of(const RawSetting& g) {
  const FieldOptions& options = g.row->options;
  Node node = g.node;
  if (node.unset() && !options.none_means.empty()) {
    node.kind = Node::Kind::scalar;
    node.text = options.none_means;
  }
  const bool open =
      node.kind == Node::Kind::scalar && !node.quoted && (node.text == "0" || node.text == "-1");
  if (options.zero_is_unset && open) node.kind = Node::Kind::null;
  return node;
}

void read_into(const RawSetting& setting, Recipe& recipe, Diagnostics& diagnostics) {
  RawSetting g = setting;
  g.node = value_of(setting);
  const TypeInfo info = g.row->ops->info();
  const bool takes_none =
      info.may_be_none || info.may_be_auto ||
      std::find(info.choices.begin(), info.choices.end(), "none") != info.choices.end();
  if (g.node.unset() && !takes_none) return;  // "not set": the default stays
  ValueError c;
  if (g.row->ops->read(g.node, g.row->options, g.row->at(recipe), c)) {
    recipe.origins[g.row->path] = g.origin;
    recipe.spellings[g.row->path] = g.spelling;
    return;
  }
  const std::string name =
      g.spelling == g.row->path ? "" : fmt::format(" (written as {})", g.spelling);
  diagnostics.add_at(Severity::error, g.location, g.row->path, c.reason + name, c.hint);
}

// Reads the architecture before all other fields, since it decides the defaults of the model's
// fields.
void apply_architecture(const ModelSource& models, RawSettings& given, Recipe& recipe,
                        Diagnostics& diagnostics) {
  interpolate_field("model.architecture", given, recipe, diagnostics);
  const auto at = given.fields.find("model.architecture");
  if (at == given.fields.end()) return;
  read_into(at->second, recipe, diagnostics);
  const Recipe before = recipe;
  recipe.model = models.defaults(recipe.model.architecture);
  for (const auto& row : schema_rows())
    if (row.show(recipe) != row.show(before)) recipe.origins[row.path] = Origin::derived;
}

using FieldSet = std::set<std::string, std::less<>>;

// Returns the fields of the model that a folder of model.from can set: those of its keys, and those
// in which families differ although there is no key.
FieldSet fields_of_folders(const ModelSource& models) {
  FieldSet fields{"model.architecture", "model.moe.layer_freq"};
  Recipe usual, family;
  for (const auto& architecture : enum_names(Architecture{})) {
    family.model = models.defaults(architecture.value);
    for (const SchemaRow& row : schema_rows())
      if (row.path.starts_with("model.rope_scaling.") || row.show(family) != row.show(usual))
        fields.insert(row.path);
  }
  for (const FolderField& field : models.folder_fields())
    if (!field.recipe_wins) fields.emplace(field.path);
  return fields;
}

// Returns the fields of the training that a folder sets if the recipe does not.
FieldSet fields_of_training(const ModelSource& models) {
  FieldSet fields;
  for (const FolderField& field : models.folder_fields())
    if (field.recipe_wins) fields.emplace(field.path);
  return fields;
}

// Adds the fields that a printed recipe has from its model.from folder. Settings in `given` win.
void take_saved_model(const ModelSource& models, const std::string& text, RawSettings& given) {
  const auto from = given.fields.find("model.from");
  if (from == given.fields.end()) return;
  Node root;
  Diagnostics ignored;
  MT_CHECK(parse_yaml(text, "the saved recipe", ignored, root), "a printed recipe is not YAML");
  const std::vector<std::string> lines = split(text, '\n');
  // print_recipe() writes "# derived" after the fields that the run's own recipe did not set.
  const auto of_folder = [&](const RawSetting& setting) {
    const auto line = size_t(std::max(setting.location.line, 1)) - 1;
    return line < lines.size() && lines[line].ends_with("# derived");
  };
  const FieldSet of_model = fields_of_folders(models), of_training = fields_of_training(models);
  RawSettings saved = flatten_fields(models, root, Origin::derived, ignored);
  for (auto& [path, setting] : saved.fields) {
    if (!of_model.contains(path) && !(of_training.contains(path) && of_folder(setting))) continue;
    setting.spelling = "model.from", setting.location = from->second.location;
    given.fields.try_emplace(path, setting);
  }
}

// Returns the text of a file. If it cannot be read, returns nothing and adds an error at
// `asked_at`, or at the file itself if `asked_at` is not known.
std::optional<std::string> read_recipe_file_text(const std::string& path,
                                                 const SourceLocation& asked_at,
                                                 Diagnostics& diagnostics) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  const auto refuse = [&](const std::string& reason, const std::string& hint) {
    const bool base = asked_at.known();
    diagnostics.add_at(Severity::error, base ? asked_at : SourceLocation{path, 0, 0},
                       base ? "base" : "", base ? fmt::format("{}: {}", path, reason) : reason,
                       hint);
    return std::nullopt;
  };
  if (!fs::exists(status)) {
    std::vector<std::string> names;
    const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().string());
    const std::string meant = nearest(path, names);
    return refuse("there is no such file",
                  meant.empty() ? "give the path of a YAML recipe, or the name of a ready one: "
                                  "`mtrain quickstart`"
                                : fmt::format("did you mean {}?", meant));
  }
  if (!fs::is_regular_file(status))
    return refuse(fs::is_directory(status) ? "is a directory, not a recipe" : "is not a file",
                  "give the path of a YAML recipe");
  if (fs::file_size(path, ignored) > (1u << 24))
    return refuse("is too large for a recipe", "give the YAML recipe, not a data file");
  try {
    std::string text = read_file(path);
    if (trim(text).empty())
      return refuse("the file is empty",
                    "`mtrain quickstart --print-recipe` prints a small recipe to start from");
    return text;
  } catch (const UserError& e) {
    return refuse(e.message(), e.hint());
  }
}

// Returns the path of the ready recipe of that name; empty if there is none. Searches the folders
// that belong to this program, as the command line does.
fs::path ready_recipe(const std::string& name) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const std::string& folder : recipe_folders(program.string()))
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".yaml" &&
          fold_name(entry.path().stem().string()) == fold_name(name))
        return entry.path();
  return {};
}

// Reads recipes and, before them, the recipes on which they are based.
class Reader {
 public:
  Reader(const ModelSource& models, Diagnostics& diagnostics)
      : models_(models), diagnostics_(diagnostics) {}

  // Returns false if the text is not YAML.
  bool read(const std::string& text, const std::string& name, RawSettings& given) {
    diagnostics_.add_source(name);
    Node root;
    if (!parse_yaml(text, name, diagnostics_, root)) return false;
    if (root.kind == Node::Kind::map) {
      read_bases(root, name, given);
      RawSettings layer = flatten_fields(models_, root, Origin::recipe, diagnostics_);
      if (!open_.empty()) refuse_command(layer);
      given.merge(std::move(layer), diagnostics_);
    } else if (root.kind != Node::Kind::null) {
      diagnostics_.add_at(
          Severity::error, root.location, "",
          fmt::format("a recipe is a mapping of sections, this is {}", describe(root)),
          "begin with a section, such as `model:`, and its keys indented below");
    }
    return true;
  }

 private:
  // A recipe that someone else wrote must not start programs.
  void refuse_command(const RawSettings& base) {
    const auto command = base.fields.find("launch.on_event");
    if (command == base.fields.end() || command->second.node.unset()) return;
    diagnostics_.add_at(Severity::error, command->second.location, "launch.on_event",
                        "a recipe on which others are based cannot name a command",
                        "set it in the recipe that you start, or on the command line");
  }

  // Reads `base: other.yaml`, or a list of recipes in which later ones win. Paths are relative to
  // the file that names them. A name without a file means a ready recipe.
  void read_bases(Node& root, const std::string& name, RawSettings& given) {
    const auto key = std::find_if(root.keys.begin(), root.keys.end(),
                                  [](const Node::Key& k) { return k.name == "base"; });
    if (key == root.keys.end()) return;
    const auto index = key - root.keys.begin();
    const Node value = root.items[size_t(index)];
    root.items.erase(root.items.begin() + index);
    root.keys.erase(key);
    std::error_code ignored;
    open_.push_back(fs::weakly_canonical(name, ignored));
    if (value.kind == Node::Kind::list) {
      for (const auto& item : value.items) read_base(item, name, given);
    } else if (!value.unset()) {
      read_base(value, name, given);
    }
    open_.pop_back();
  }

  void read_base(Node node, const std::string& name, RawSettings& given) {
    if (node.kind == Node::Kind::scalar && !interpolate_base(node, diagnostics_)) return;
    const auto refuse = [&](const std::string& reason, const std::string& hint) {
      diagnostics_.add_at(Severity::error, node.location, "base", reason, hint);
    };
    if (node.kind != Node::Kind::scalar)
      return refuse(fmt::format("expected the path of a recipe, got {}", describe(node)),
                    "write base: other.yaml");
    const fs::path path = base_path(node, fs::path(name).parent_path());
    if (is_open(path))
      return refuse(fmt::format("{} is based on itself", path.string()),
                    "remove the base of one of the recipes in this circle");
    if (++files_ > 64 || open_.size() > 16)
      return refuse("this recipe is based on too many others", "put them together into fewer");
    if (const auto text = read_recipe_file_text(path.string(), node.location, diagnostics_))
      read(*text, path.string(), given);
  }

  bool is_open(const fs::path& path) const {
    std::error_code ignored;
    return std::ranges::count(open_, fs::weakly_canonical(path, ignored)) > 0;
  }

  // Returns the file that a base means: its path, else a recipe of that name in `folder`, else the
  // ready recipe. A recipe may have the name of the ready recipe on which it is based.
  fs::path base_path(const Node& node, const fs::path& folder) {
    const fs::path path = folder / node.text;
    std::error_code ignored;
    if (node.text.find('/') != std::string::npos || fs::is_regular_file(path, ignored)) return path;
    const bool whole = node.text.ends_with(".yaml");
    const std::string stem = whole ? node.text.substr(0, node.text.size() - 5) : node.text;
    const fs::path beside = folder / (stem + ".yaml"), ready = ready_recipe(stem);
    const bool has_beside = fs::is_regular_file(beside, ignored);
    if (has_beside && (ready.empty() || !is_open(beside))) return beside;
    if (ready.empty()) return path;
    diagnostics_.add_at(Severity::resolved, node.location, "base",
                        fmt::format("`{}` is the ready recipe {}", node.text, ready.string()));
    return ready;
  }

  const ModelSource& models_;
  Diagnostics& diagnostics_;
  std::vector<fs::path> open_;
  int files_ = 0;
};

// AutoModel names a model and its revision separately. The revision of a folder says nothing.
void join_revision(RawSettings& given) {
  const auto revision = given.foreign.find("model.revision");
  const auto from = given.fields.find("model.from");
  if (revision == given.foreign.end() || from == given.fields.end() || revision->second.empty() ||
      revision->second == "null")
    return;
  std::string& name = from->second.node.text;
  std::error_code ignored;
  if (name.find('@') == std::string::npos && !fs::exists(name, ignored))
    name += "@" + revision->second;
}

}  // namespace

Recipe build_recipe(const ModelSource& models, RawSettings given, const std::string& source,
                    Diagnostics& diagnostics, const std::string& saved_model) {
  Recipe recipe;
  recipe.automodel = given.automodel;
  add_automodel_defaults(given, diagnostics);
  for (auto& [path, setting] : given.defaults) {
    const auto at = given.fields.try_emplace(path, setting).first;
    if (at->second.node.unset()) at->second = setting;
  }
  interpolate_field("model.from", given, recipe, diagnostics);
  interpolate_field("model.ignore_keys", given, recipe, diagnostics);
  join_revision(given);
  if (saved_model.empty())
    models.read_folder(given, diagnostics);
  else
    take_saved_model(models, saved_model, given);
  apply_architecture(models, given, recipe, diagnostics);
  interpolate(given, recipe, diagnostics, recipe.references);
  for (const auto& [path, g] : given.fields)
    if (path != "model.architecture" && path == g.row->path) read_into(g, recipe, diagnostics);
  apply_parts(given, recipe, diagnostics);
  recipe.foreign = std::move(given.foreign);
  recipe.sections = std::move(given.sections);
  if (recipe.train.run_dir.empty()) {
    recipe.train.run_dir = "runs/" + fs::path(source).stem().string();
    recipe.origins["train.run_dir"] = Origin::derived;
  }
  resolve_recipe(models.defaults(recipe.model.architecture), recipe, diagnostics);
  return recipe;
}

std::optional<Recipe> read_recipe_text(const ModelSource& models, const std::string& text,
                                       const std::string& name,
                                       const std::vector<std::string>& overrides,
                                       Diagnostics& diagnostics, const std::string& saved_model) {
  diagnostics.add_source(name);
  RawSettings given;
  const bool readable = Reader(models, diagnostics).read(text, name, given);
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string shown = holds_secrets(overrides[i])
                                  ? overrides[i].substr(0, overrides[i].find('=')) + "=..."
                                  : overrides[i];
    const std::string source = fmt::format("the setting `{}`", shown);
    diagnostics.add_source(source);
    apply_override(models, overrides[i], source, diagnostics, given);
  }
  if (!readable) return std::nullopt;
  return build_recipe(models, std::move(given), name, diagnostics, saved_model);
}

std::optional<Recipe> read_recipe(const ModelSource& models, const std::string& path,
                                  const std::vector<std::string>& overrides,
                                  Diagnostics& diagnostics, const std::string& saved_model) {
  diagnostics.add_source(path);
  const auto text = read_recipe_file_text(path, {}, diagnostics);
  if (!text) return std::nullopt;
  return read_recipe_text(models, *text, path, overrides, diagnostics, saved_model);
}

}  // namespace mtrain::recipe
