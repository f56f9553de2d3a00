#include "interchange/config/file.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/strings.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain::interchange {

bool ConfigFile::parse(const std::string& text, const std::string& path) {
  path_ = path;
  Diagnostics own;
  const bool whole = parse_json(text, path_, own, root_) && root_.kind == Node::Kind::map;
  if (whole && !own.has_errors()) return true;
  // The text itself may have errors, such as a duplicate key.
  for (const recipe::Diagnostic& d : own.sorted())
    if (d.severity == recipe::Severity::error)
      refuse(fmt::format("{}: {}", d.location.str(), d.reason),
             "correct the file, or download the folder again");
  if (!own.has_errors())
    refuse(fmt::format("{} is not a JSON object", path_), "download the folder again");
  return false;
}

void ConfigFile::name_family(std::string_view model_type) {
  path_ += fmt::format(" (model_type {})", model_type);
}

const Node* ConfigFile::find(const Node& map, std::string_view key) {
  for (size_t i = 0; i < map.keys.size(); ++i)
    if (map.keys[i].name == key) return &map.items[i];
  return nullptr;
}

const Node* ConfigFile::given(const Node& map, std::string_view key) {
  const Node* node = find(map, key);
  return node && node->unset() ? nullptr : node;
}

std::optional<int64_t> ConfigFile::number(std::string_view key, int64_t omitted) {
  const Node* node = given(key);
  if (!node) return omitted;
  int64_t value = 0;
  recipe::ValueError wrong;
  if (read_value(*node, {}, value, wrong)) return value;
  refuse(fmt::format("{}: {}: {}", path_, key, wrong.reason), wrong.hint);
  return std::nullopt;
}

const Node* ConfigFile::field(std::string_view path) const {
  const auto at = given_.fields.find(path);
  return at == given_.fields.end() ? nullptr : &at->second.node;
}

double ConfigFile::field_number(std::string_view path) const {
  double value = 0;
  recipe::ValueError ignored;
  if (const Node* node = field(path)) read_value(*node, {}, value, ignored);
  return value;
}

void ConfigFile::set(std::string_view field, const Node& value, std::string_view key,
                     bool recipe_wins, bool replace) {
  const recipe::SchemaRow* row = recipe::find_row(field);
  RawSetting setting{row, "model.from", from_.location, value, recipe::Origin::derived};
  setting.node.location = from_.location;
  Recipe scratch;
  if (recipe::ValueError wrong;
      !value.unset() && !row->ops->read(value, row->options, row->at(scratch), wrong))
    return refuse(fmt::format("{}: {}: {}", path_, key, wrong.reason), wrong.hint);
  const auto at = given_.fields.find(row->path);
  const bool own = at != given_.fields.end() && at->second.spelling != "model.from";
  if (!own && (replace || at == given_.fields.end())) {
    given_.fields.insert_or_assign(row->path, std::move(setting));
  } else if (own && !recipe_wins && !same_value(at->second, setting)) {
    diagnostics_.add_at(
        recipe::Severity::error, at->second.location, row->path,
        fmt::format("is {}, but {} (model.from at {}) says {}: {}", describe(at->second.node),
                    path_, from_.location.str(), key,
                    value.kind == Node::Kind::scalar ? value.text : describe(value)),
        "remove one of the two");
  }
}

Node ConfigFile::scalar(std::string_view text) const {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  node.location = from_.location;
  return node;
}

int64_t ConfigFile::number_of_layers() const {
  const char* key = find("n_layer") ? "n_layer" : "num_hidden_layers";
  int64_t layers = 1;
  recipe::ValueError ignored;  // other checks report a wrong type or range
  if (const Node* node = find(key))
    read_value(*node, {}, layers, ignored);
  else if (field("model.num_layers"))
    layers = int64_t(field_number("model.num_layers"));
  return std::clamp<int64_t>(layers, 0, 100000);
}

Node ConfigFile::frequency(const std::vector<bool>& apart, int mark) const {
  const auto first = std::ranges::find(apart, true);
  if (first == apart.end()) return scalar("0");
  const int64_t n = first - apart.begin() + 1;
  bool every_nth = true;
  for (int64_t l = 0; l < int64_t(apart.size()); ++l)
    every_nth = every_nth && apart[size_t(l)] == ((l + 1) % n == 0);
  if (every_nth) return scalar(std::to_string(n));
  Node list;
  list.kind = Node::Kind::list;
  list.location = from_.location;
  for (const bool is : apart) list.items.push_back(scalar(is == (mark == 1) ? "1" : "0"));
  return list;
}

void ConfigFile::check_only(std::string_view key, std::string_view built, const Node& value) {
  const std::vector<std::string> words = split(built, ' ');
  for (const std::string& word : words) {
    double wanted = 0, is = 0;
    recipe::ValueError ignored;
    const bool numbers =
        read_value(scalar(word), {}, wanted, ignored) && read_value(value, {}, is, ignored);
    if (numbers ? wanted == is : to_lower(value.text) == word) return;
  }
  refuse(fmt::format("{}: {} is {}, and only {} is supported", path_, key, value.text,
                     fmt::join(words, " or ")),
         "such models cannot be trained yet");
}

void ConfigFile::refuse(std::string reason, std::string hint) {
  diagnostics_.add_at(recipe::Severity::error, from_.location, "model.from", std::move(reason),
                      std::move(hint));
  diagnostics_.distrust("model");
}

}  // namespace mtrain::interchange
