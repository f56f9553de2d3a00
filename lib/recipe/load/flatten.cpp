#include <algorithm>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {

void RawSettings::merge(RawSettings&& over) {
  for (auto& [path, field] : over.fields) fields.insert_or_assign(path, std::move(field));
  sections.merge(over.sections);
}

namespace {

std::string normalize_key(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string_view last_word(std::string_view path) {
  return path.substr(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1);
}

bool is_hydra_key(std::string_view key) {
  return key == "_target_" || key == "_recursive_" || key == "_convert_";
}

bool only_says_gated(const RawSetting& g) { return g.spelling == "model.gated_linear_unit"; }

// Compares what two spellings of a field say, as the field's type reads them. An activation agrees
// with a gated_linear_unit beside it that says no more than whether there is a gate.
bool same_value(const RawSetting& a, const RawSetting& b) {
  Recipe x, y;
  ValueError c;
  if (!a.row->ops->read(a.node, a.row->options, a.row->at(x), c) ||
      !b.row->ops->read(b.node, b.row->options, b.row->at(y), c))
    return a.node.text == b.node.text;  // such as ${...}, or a mistake that is reported later
  if (only_says_gated(a) || only_says_gated(b)) return x.model.gated() == y.model.gated();
  return a.row->show(x) == b.row->show(y);
}

// Returns the row that a negated name sets: Megatron's no_align_param_gather: true means
// align_param_gather: false. Returns null if there is none.
const SchemaRow* negated_row(const std::string& path) {
  const auto word = last_word(path);
  for (std::string_view prefix : {"no_", "disable_"}) {
    if (word.substr(0, prefix.size()) != prefix) continue;
    const std::string plain =
        path.substr(0, path.size() - word.size()) + std::string(word.substr(prefix.size()));
    const SchemaRow* row = find_row(plain);
    if (row && row->ops->info().kind == TypeInfo::Kind::boolean) return row;
  }
  return nullptr;
}

// Walks a tree and notes which field each leaf sets.
class Collector {
 public:
  Collector(Diagnostics& diagnostics, Origin origin) : diagnostics_(diagnostics), origin_(origin) {}

  RawSettings given;

  void collect(const Node& node, const std::string& prefix) {
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const auto& key = node.keys[i];
      if (is_hydra_key(key.name)) {
        warn_hydra(key.name, key.location);
        continue;
      }
      const std::string path =
          normalize_path(prefix.empty() ? key.name : prefix + "." + normalize_key(key.name));
      if (path == "cfg" && prefix.empty() && node.items[i].kind == Node::Kind::map)
        collect(node.items[i], "");
      else
        set(path, key.location, node.items[i]);
    }
  }

  void set(const std::string& path, const SourceLocation& location, const Node& node) {
    if (is_hydra_key(last_word(path))) return warn_hydra(path, location);
    if (const SchemaRow* row = find_row(path)) return add({row, path, location, node, origin_});
    for (const auto& conversion : foreign_spellings())
      if (conversion.path == path) return convert(conversion, location, node);
    if (const SchemaRow* row = negated_row(path)) return negate(row, path, location, node);
    if (find_section(path) || is_section_path(path)) return set_section(path, location, node);
    if (++unknown_ > kMaxUnknown) return;
    const std::string meant = nearest_key(path);
    diagnostics_.add_at(Severity::error, location, path, "there is no such key",
                        meant.empty() ? "" : fmt::format("did you mean `{}`?", meant));
    if (unknown_ == kMaxUnknown)
      diagnostics_.add_at(Severity::error, location, path, "further unknown keys are not listed",
                          "is this file a recipe of mtrain?");
  }

 private:
  static constexpr int kMaxUnknown = 50;

  void set_section(const std::string& path, const SourceLocation& location, const Node& node) {
    const SchemaSection* section = find_section(path);
    diagnostics_.set_location(path, location);
    if (node.kind == Node::Kind::map) {
      given.sections.insert(path);
      collect(node, path);
    } else if (node.kind == Node::Kind::scalar && !node.unset() && section &&
               !section->options.shorthand.empty()) {
      const std::string leaf = path + "." + std::string(section->options.shorthand);
      add({find_row(leaf), leaf, location, node, origin_});
    } else if (!node.unset()) {
      diagnostics_.add_at(Severity::error, location, path,
                          fmt::format("is a section of several keys, got {}", describe(node)),
                          fmt::format("write `{}:` and its keys indented below", last_word(path)));
    }
  }

  void convert(const ForeignSpelling& conversion, const SourceLocation& location, Node node) {
    if (node.kind == Node::Kind::scalar) node.text = conversion.convert(node.text);
    if (node.unset()) return;
    add({find_row(conversion.target), std::string(conversion.path), location, std::move(node),
         origin_});
  }

  void negate(const SchemaRow* row, const std::string& path, const SourceLocation& location,
              Node node) {
    bool value = false;
    ValueError c;
    if (read_value(node, {}, value, c)) node.text = value ? "false" : "true";
    add({row, path, location, std::move(node), origin_});
  }

  void add(RawSetting g) {
    diagnostics_.set_location(g.row->path, g.location);
    const auto before = given.fields.find(g.row->path);
    if (before != given.fields.end() && origin_ == Origin::recipe &&
        !same_value(before->second, g)) {
      diagnostics_.add_at(
          Severity::error, g.location, g.row->path,
          fmt::format("is set twice to different values: `{}` ({}) at {} and `{}` ({}) here",
                      before->second.spelling, describe(before->second.node),
                      before->second.location.str(), g.spelling, describe(g.node)),
          "both names mean the same field; keep one of them");
    }
    if (const auto dot = g.spelling.find('.'); dot != std::string::npos)
      given.sections.insert(g.spelling.substr(0, dot));
    if (before != given.fields.end() && origin_ == Origin::recipe && only_says_gated(g)) return;
    given.fields.insert_or_assign(g.row->path, std::move(g));
  }

  void warn_hydra(const std::string& name, const SourceLocation& location) {
    if (hydra_warned_) return;
    hydra_warned_ = true;
    diagnostics_.add_at(Severity::warning, location, name,
                        "keys of Hydra (_target_, _recursive_, _convert_) are ignored");
  }

  Diagnostics& diagnostics_;
  Origin origin_;
  bool hydra_warned_ = false;
  int unknown_ = 0;
};

void reset(const std::string& path, const SourceLocation& location, Diagnostics& diagnostics,
           RawSettings& given) {
  if (const SchemaRow* row = find_row(path)) {
    given.fields.erase(row->path);
  } else if (find_section(path)) {
    const auto below = [&](const std::string& p) {
      return p == path || p.rfind(path + ".", 0) == 0;
    };
    std::erase_if(given.fields, [&](const auto& entry) { return below(entry.first); });
    std::erase_if(given.sections, below);
  } else {
    const std::string meant = nearest_key(path);
    diagnostics.add_at(Severity::error, location, path, "there is no such key",
                       meant.empty() ? "" : fmt::format("did you mean `~{}`?", meant));
  }
}

}  // namespace

std::string normalize_path(std::string_view path) {
  std::string out = normalize_key(path);
  return out.rfind("cfg.", 0) == 0 ? out.substr(4) : out;
}

RawSettings flatten_fields(const Node& root, Origin origin, Diagnostics& diagnostics) {
  Collector collector(diagnostics, origin);
  collector.collect(root, "");
  return std::move(collector.given);
}

void apply_override(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                    RawSettings& given) {
  const SourceLocation location{source, 0, 0};
  const auto equals = text.find('=');
  if (!text.empty() && text[0] == '+') {
    diagnostics.add_at(Severity::error, location, "",
                       "a new key cannot be added; every key of a recipe is known",
                       "leave the + out");
    return;
  }
  if (!text.empty() && text[0] == '~')
    return reset(normalize_path(trim(std::string_view(text).substr(1, equals - 1))), location,
                 diagnostics, given);
  if (equals == std::string::npos || equals == 0) {
    diagnostics.add_at(Severity::error, location, "", "this is not an override",
                       "write path=value, such as optimizer.lr=1e-4, or ~path to reset a field");
    return;
  }
  const std::string path = normalize_path(trim(std::string_view(text).substr(0, equals)));
  Node node;
  if (!parse_override_value(text.substr(equals + 1), source, path, diagnostics, node)) return;
  Collector collector(diagnostics, Origin::command_line);
  collector.set(path, location, node);
  given.merge(std::move(collector.given));
}

}  // namespace mtrain::recipe
