#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/node.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"

namespace mtrain {
namespace {

namespace fs = std::filesystem;

// One field as a recipe or an override sets it.
struct Given {
  const SchemaRow* row;
  std::string spelling;
  Place place;
  Node node;
  Origin origin;
};
using GivenMap = std::map<std::string, Given, std::less<>>;  // by the field's own path

std::string normalize_key(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string normalize_path(std::string_view path) {
  std::string out = normalize_key(path);
  return out.rfind("cfg.", 0) == 0 ? out.substr(4) : out;
}

bool is_hydra_key(std::string_view key) {
  return key == "_target_" || key == "_recursive_" || key == "_convert_";
}

// What two spellings of a field say is compared as the field's type would read it.
bool same_value(const Given& a, const Given& b) {
  Recipe x, y;
  Complaint c;
  if (!a.row->ops->read(a.node, a.row->options, a.row->at(x), c) ||
      !b.row->ops->read(b.node, b.row->options, b.row->at(y), c))
    return true;  // reported when the value is read
  return a.row->show(x) == b.row->show(y);
}

// Walks a tree and notes which field each leaf sets.
class Collector {
 public:
  Collector(Problems& problems, Origin origin) : problems_(problems), origin_(origin) {}

  GivenMap given;

  void collect(const Node& node, const std::string& prefix) {
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const auto& key = node.keys[i];
      if (is_hydra_key(key.name)) {
        warn_hydra(key);
        continue;
      }
      const std::string path =
          normalize_path(prefix.empty() ? key.name : prefix + "." + normalize_key(key.name));
      if (path == "cfg" && prefix.empty() && node.items[i].kind == Node::Kind::map)
        collect(node.items[i], "");
      else
        set(path, key.place, node.items[i]);
    }
  }

  void set(const std::string& path, const Place& place, const Node& node) {
    const SchemaSection* section = find_section(path);
    if (const SchemaRow* row = find_row(path)) {
      add({row, path, place, node, origin_});
    } else if (section || is_section_path(path)) {
      problems_.set_place(path, place);
      if (node.kind == Node::Kind::map) {
        collect(node, path);
      } else if (node.kind == Node::Kind::scalar && section &&
                 !section->options.shorthand.empty()) {
        const std::string leaf = path + "." + std::string(section->options.shorthand);
        add({find_row(leaf), leaf, place, node, origin_});
      } else if (!node.unset()) {
        problems_.add_at(Severity::error, place, path,
                         fmt::format("is a section of several keys, got {}", describe(node)),
                         fmt::format("write `{}:` and its keys indented below", last_word(path)));
      }
    } else {
      unknown(path, place);
    }
  }

 private:
  static std::string last_word(const std::string& path) {
    return path.substr(path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
  }

  void add(Given g) {
    problems_.set_place(g.row->path, g.place);
    const auto before = given.find(g.row->path);
    if (before != given.end() && origin_ == Origin::recipe && !same_value(before->second, g)) {
      problems_.add_at(Severity::error, g.place, g.row->path,
                       fmt::format("is set twice to different values: `{}` at {} and `{}` here",
                                   before->second.spelling, before->second.place.str(), g.spelling),
                       "both names mean the same field; keep one of them");
    }
    given.insert_or_assign(g.row->path, std::move(g));
  }

  void unknown(const std::string& path, const Place& place) {
    const std::string meant = nearest_key(path);
    problems_.add_at(Severity::error, place, path, "there is no such key",
                     meant.empty() ? "" : fmt::format("did you mean `{}`?", meant));
  }

  void warn_hydra(const Node::Key& key) {
    if (hydra_warned_) return;
    hydra_warned_ = true;
    problems_.add_at(Severity::warning, key.place, key.name,
                     "keys of Hydra (_target_, _recursive_, _convert_) are ignored");
  }

  Problems& problems_;
  Origin origin_;
  bool hydra_warned_ = false;
};

void apply_override(const std::string& text, const std::string& source, Problems& problems,
                    GivenMap& given) {
  const Place place{source, 0, 0};
  const auto equals = text.find('=');
  if (!text.empty() && text[0] == '+') {
    problems.add_at(
        Severity::error, place, "",
        fmt::format("`{}`: a new key cannot be added; every key of a recipe is known", text),
        "leave the + out");
    return;
  }
  if (!text.empty() && text[0] == '~') {
    const std::string path = normalize_path(
        text.substr(1, equals == std::string::npos ? std::string::npos : equals - 1));
    const SchemaRow* row = find_row(path);
    if (row) {
      given.erase(row->path);
    } else if (find_section(path)) {
      std::erase_if(given,
                    [&](const auto& entry) { return entry.first.rfind(path + ".", 0) == 0; });
    } else {
      const std::string meant = nearest_key(path);
      problems.add_at(Severity::error, place, path, "there is no such key",
                      meant.empty() ? "" : fmt::format("did you mean `~{}`?", meant));
    }
    return;
  }
  if (equals == std::string::npos || equals == 0) {
    problems.add_at(Severity::error, place, "", fmt::format("`{}` is not an override", text),
                    "write path=value, such as optimizer.lr=1e-4, or ~path to reset a field");
    return;
  }
  const std::string path = normalize_path(trim(std::string_view(text).substr(0, equals)));
  Node node;
  if (!parse_override_value(text.substr(equals + 1), source, path, problems, node)) return;
  Collector collector(problems, Origin::command_line);
  collector.set(path, place, node);
  for (auto& [key, value] : collector.given) given.insert_or_assign(key, std::move(value));
}

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
void apply_architecture(const GivenMap& given, Recipe& recipe, Problems& problems) {
  const auto at = given.find("model.architecture");
  if (at == given.end()) return;
  read_into(at->second, recipe, problems);
  const Recipe before = recipe;
  recipe.model = model_defaults(recipe.model.architecture);
  for (const auto& row : schema_rows())
    if (row.show(recipe) != row.show(before)) recipe.origins[row.path] = Origin::derived;
}

Recipe build(const Node& root, const std::string& source, const std::vector<std::string>& overrides,
             Problems& problems) {
  problems.add_source(source);
  GivenMap given;
  if (root.kind == Node::Kind::map) {
    Collector collector(problems, Origin::recipe);
    collector.collect(root, "");
    given = std::move(collector.given);
  } else if (root.kind != Node::Kind::null) {
    problems.add_at(Severity::error, root.place, "",
                    fmt::format("a recipe is a mapping of sections, this is {}", describe(root)),
                    "begin with a section, such as `model:`, and its keys indented below");
  }
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string name = fmt::format("override {} (`{}`)", i + 1, overrides[i]);
    problems.add_source(name);
    apply_override(overrides[i], name, problems, given);
  }
  Recipe recipe;
  apply_architecture(given, recipe, problems);
  for (const auto& [path, g] : given)
    if (path != "model.architecture") read_into(g, recipe, problems);
  if (recipe.train.run_dir.empty()) {
    recipe.train.run_dir = "runs/" + fs::path(source).stem().string();
    recipe.origins["train.run_dir"] = Origin::derived;
  }
  resolve_recipe(recipe, problems);
  validate_recipe(recipe, problems);
  return recipe;
}

}  // namespace

Recipe load_recipe_text(const std::string& text, const std::string& name,
                        const std::vector<std::string>& overrides, Problems& problems) {
  problems.add_source(name);
  Node root;
  if (!parse_yaml(text, name, problems, root)) {
    GivenMap ignored;  // the overrides can still be wrong in themselves
    for (size_t i = 0; i < overrides.size(); ++i)
      apply_override(overrides[i], fmt::format("override {} (`{}`)", i + 1, overrides[i]), problems,
                     ignored);
    return {};
  }
  return build(root, name, overrides, problems);
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides,
                   Problems& problems) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  const Place place{path, 0, 0};
  problems.add_source(path);
  if (!fs::exists(status)) {
    std::string hint = "give the path of a YAML recipe, such as recipes/quickstart.yaml";
    std::vector<std::string> names;
    const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().string());
    if (const auto meant = nearest(path, names); !meant.empty())
      hint = fmt::format("did you mean {}?", meant);
    problems.add_at(Severity::error, place, "", "there is no such file", hint);
    return {};
  }
  if (!fs::is_regular_file(status)) {
    problems.add_at(Severity::error, place, "",
                    fs::is_directory(status) ? "is a directory, not a recipe" : "is not a file",
                    "give the path of a YAML recipe");
    return {};
  }
  std::string text;
  if (fs::file_size(path, ignored) > (64u << 20)) {
    problems.add_at(Severity::error, place, "", "is too large for a recipe",
                    "give the YAML recipe, not a data file");
    return {};
  }
  try {
    text = read_file(path);
  } catch (const UserError& e) {
    problems.add_at(Severity::error, place, "", e.message(), e.hint());
    return {};
  }
  if (trim(text).empty()) {
    problems.add_at(Severity::error, place, "", "the file is empty",
                    "recipes/quickstart.yaml is a small recipe to start from");
    return {};
  }
  return load_recipe_text(text, path, overrides, problems);
}

}  // namespace mtrain
