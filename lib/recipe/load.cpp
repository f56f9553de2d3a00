#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/given.h"
#include "recipe/node.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"

namespace mtrain {
namespace {

namespace fs = std::filesystem;

void read_into(const Given& g, Recipe& recipe, Problems& problems) {
  const TypeInfo info = g.row->ops->info();
  const bool takes_none =
      info.may_be_none || info.may_be_auto ||
      std::find(info.choices.begin(), info.choices.end(), "none") != info.choices.end();
  if (g.node.unset() && !takes_none) return;  // "not set": the default stays
  Complaint c;
  if (g.row->ops->read(g.node, g.row->options, g.row->at(recipe), c)) {
    recipe.origins[g.row->path] = g.origin;
    return;
  }
  const std::string name =
      g.spelling == g.row->path ? "" : fmt::format(" (written as {})", g.spelling);
  problems.add_at(Severity::error, g.place, g.row->path, c.reason + name, c.hint);
}

// The architecture goes first, for it decides what the other fields of the model are by default.
void apply_architecture(GivenFields& given, Recipe& recipe, Problems& problems) {
  interpolate_field("model.architecture", given, recipe, problems);
  const auto at = given.fields.find("model.architecture");
  if (at == given.fields.end()) return;
  read_into(at->second, recipe, problems);
  const Recipe before = recipe;
  recipe.model = model_defaults(recipe.model.architecture);
  for (const auto& row : schema_rows())
    if (row.show(recipe) != row.show(before)) recipe.origins[row.path] = Origin::derived;
}

Recipe build(GivenFields given, const std::string& source, Problems& problems) {
  Recipe recipe;
  apply_architecture(given, recipe, problems);
  interpolate(given, recipe, problems);
  for (const auto& [path, g] : given.fields)
    if (path != "model.architecture") read_into(g, recipe, problems);
  recipe.sections = std::move(given.sections);
  if (recipe.train.run_dir.empty()) {
    recipe.train.run_dir = "runs/" + fs::path(source).stem().string();
    recipe.origins["train.run_dir"] = Origin::derived;
  }
  resolve_recipe(recipe, problems);
  return recipe;
}

// The text of a file; nothing, and a problem at `asked_at` or the file itself, when it cannot be
// had.
std::optional<std::string> read_text(const std::string& path, const Place& asked_at,
                                     Problems& problems) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  const auto refuse = [&](const std::string& reason, const std::string& hint) {
    const bool base = asked_at.known();
    problems.add_at(Severity::error, base ? asked_at : Place{path, 0, 0}, base ? "base" : "",
                    base ? fmt::format("{}: {}", path, reason) : reason, hint);
    return std::nullopt;
  };
  if (!fs::exists(status)) {
    std::vector<std::string> names;
    const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().string());
    const std::string meant = nearest(path, names);
    return refuse("there is no such file",
                  meant.empty() ? "give the path of a YAML recipe, such as recipes/quickstart.yaml"
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
      return refuse("the file is empty", "recipes/quickstart.yaml is a small recipe to start from");
    return text;
  } catch (const UserError& e) {
    return refuse(e.message(), e.hint());
  }
}

// Reads recipes and, before them, what they are based on.
class Reader {
 public:
  explicit Reader(Problems& problems) : problems_(problems) {}

  // False if there is no tree at all.
  bool read(const std::string& text, const std::string& name, GivenFields& given) {
    problems_.add_source(name);
    Node root;
    if (!parse_yaml(text, name, problems_, root)) return false;
    if (root.kind == Node::Kind::map) {
      read_bases(root, name, given);
      given.merge(collect_fields(root, Origin::recipe, problems_));
    } else if (root.kind != Node::Kind::null) {
      problems_.add_at(Severity::error, root.place, "",
                       fmt::format("a recipe is a mapping of sections, this is {}", describe(root)),
                       "begin with a section, such as `model:`, and its keys indented below");
    }
    return true;
  }

 private:
  // `base: other.yaml`, or a list of which the later win; paths start at the folder of the file
  // that names them.
  void read_bases(Node& root, const std::string& name, GivenFields& given) {
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

  void read_base(const Node& node, const std::string& name, GivenFields& given) {
    const auto refuse = [&](const std::string& reason, const std::string& hint) {
      problems_.add_at(Severity::error, node.place, "base", reason, hint);
    };
    if (node.kind != Node::Kind::scalar)
      return refuse(fmt::format("expected the path of a recipe, got {}", describe(node)),
                    "write base: other.yaml");
    const fs::path path = fs::path(name).parent_path() / node.text;
    std::error_code ignored;
    const fs::path whole = fs::weakly_canonical(path, ignored);
    if (std::find(open_.begin(), open_.end(), whole) != open_.end())
      return refuse(fmt::format("{} is based on itself", path.string()),
                    "remove the base of one of the recipes in this circle");
    if (++files_ > 64 || open_.size() > 16)
      return refuse("there are too many recipes behind this one", "put them together into fewer");
    if (const auto text = read_text(path.string(), node.place, problems_))
      read(*text, path.string(), given);
  }

  Problems& problems_;
  std::vector<fs::path> open_;
  int files_ = 0;
};

}  // namespace

std::optional<Recipe> read_recipe_text(const std::string& text, const std::string& name,
                                       const std::vector<std::string>& overrides,
                                       Problems& problems) {
  problems.add_source(name);
  GivenFields given;
  const bool readable = Reader(problems).read(text, name, given);
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string source = fmt::format("override {} (`{}`)", i + 1, overrides[i]);
    problems.add_source(source);
    apply_override(overrides[i], source, problems, given);
  }
  if (!readable) return std::nullopt;
  return build(std::move(given), name, problems);
}

std::optional<Recipe> read_recipe(const std::string& path,
                                  const std::vector<std::string>& overrides, Problems& problems) {
  problems.add_source(path);
  const auto text = read_text(path, {}, problems);
  if (!text) return std::nullopt;
  return read_recipe_text(*text, path, overrides, problems);
}

}  // namespace mtrain
