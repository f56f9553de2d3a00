#include "recipe/schema/schema.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

template <class T>
concept SectionType = requires {
  T::fields;
};

struct Schema {
  std::vector<SchemaRow> rows;
  std::vector<SchemaSection> sections;
  std::map<std::string, size_t, std::less<>> by_path;  // own paths and aliases
  std::set<std::string, std::less<>> prefixes;
  std::vector<std::string> also_written;  // names whose values are converted

  // Fields are identified by their offset in a recipe. Little code then depends on their types;
  // such code is compiled for each of some hundred fields.
  template <class Section>
  void add_fields(const std::string& prefix, const Recipe& recipe, const Section& section) {
    std::apply([&](const auto&... field) { (add_field(prefix, recipe, section, field), ...); },
               Section::fields);
  }

  template <class Section, class T>
  void add_field(const std::string& prefix, const Recipe& recipe, const Section& section,
                 const Field<Section, T>& field) {
    const T& value = section.*field.member;
    if constexpr (SectionType<T>)
      add_fields<T>(add_section(prefix, field.name, field.help, field.options), recipe, value);
    else
      add_row(prefix, field.name, field.help, field.options, type_ops<T>(),
              reinterpret_cast<const char*>(&value) - reinterpret_cast<const char*>(&recipe));
  }

  static std::string join(const std::string& prefix, std::string_view name) {
    return prefix.empty() ? std::string(name) : prefix + "." + std::string(name);
  }

  std::string add_section(const std::string& prefix, std::string_view name, std::string_view help,
                          const FieldOptions& options) {
    sections.push_back({join(prefix, name), help, options});
    return sections.back().path;
  }

  void add_row(const std::string& prefix, std::string_view name, std::string_view help,
               const FieldOptions& options, const TypeOps* ops, std::ptrdiff_t offset) {
    rows.push_back({join(prefix, name), help, options, ops,
                    [offset](Recipe& r) -> void* { return reinterpret_cast<char*>(&r) + offset; }});
  }

  void add_spelling(const std::string& path, size_t row) {
    const bool added = by_path.emplace(path, row).second;
    MT_CHECK(added, "the recipe key {} belongs to two fields", path);
    add_prefixes(path);
  }

  void add_prefixes(const std::string& path) {
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      prefixes.insert(path.substr(0, dot));
  }

  Schema() {
    const Recipe recipe;
    add_fields("", recipe, recipe);
    for (size_t i = 0; i < rows.size(); ++i) {
      add_spelling(rows[i].path, i);
      for (const auto& alias : rows[i].aliases()) add_spelling(alias, i);
    }
    for (const auto& conversion : foreign_spellings()) {
      const auto row = by_path.find(conversion.target);
      MT_CHECK(row != by_path.end(), "no field {}", conversion.target);
      add_prefixes(std::string(conversion.path));
      also_written.emplace_back(conversion.path);
    }
  }
};

// Returns the candidate whose beginning is similar to `word`: hidden_size for hiden.
std::string nearest_start(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() < 4) return {};
  std::vector<std::string> starts;
  for (const auto& c : candidates) starts.push_back(c.substr(0, word.size() + 1));
  const std::string start = nearest(word, starts);
  for (const auto& c : candidates)
    if (!start.empty() && c.rfind(start, 0) == 0) return c;
  return {};
}

const Schema& schema() {
  static const Schema instance;
  return instance;
}

const Recipe& defaults() {
  static const Recipe instance;
  return instance;
}

}  // namespace

std::vector<std::string> SchemaRow::aliases() const {
  std::vector<std::string> list;
  for (auto& word : split(options.aliases, ' '))
    if (!word.empty()) list.push_back(std::move(word));
  return list;
}

// `at` takes a mutable recipe, since it serves reading and writing. show() only reads
// through the pointer to a const recipe.
std::string SchemaRow::show(const Recipe& recipe) const {
  return ops->show(at(const_cast<Recipe&>(recipe)));
}

std::string SchemaRow::show_default() const { return show(defaults()); }

const std::vector<SchemaRow>& schema_rows() { return schema().rows; }
const std::vector<SchemaSection>& schema_sections() { return schema().sections; }

const SchemaRow* find_row(std::string_view path) {
  const auto at = schema().by_path.find(path);
  return at == schema().by_path.end() ? nullptr : &schema().rows[at->second];
}

const SchemaSection* find_section(std::string_view path) {
  for (const auto& section : schema().sections)
    if (section.path == path) return &section;
  return nullptr;
}

bool is_section_path(std::string_view path) { return schema().prefixes.count(path) > 0; }

std::string nearest_key(std::string_view path) {
  if (path.size() > 120) return {};  // no key is similar, and the comparison would take long
  const auto dot = path.rfind('.');
  const std::string parent(dot == std::string_view::npos ? "" : path.substr(0, dot + 1));
  const std::string_view last = dot == std::string_view::npos ? path : path.substr(dot + 1);
  // Look first for a similar key of the same section, then for the same word in any section, then
  // for any similar path whose last word is similar.
  std::vector<std::string> siblings, paths;
  std::string elsewhere;
  const auto consider = [&](const std::string& spelling) {
    paths.push_back(spelling);
    if (spelling.rfind(parent, 0) == 0)
      siblings.push_back(
          spelling.substr(parent.size(), spelling.find('.', parent.size()) - parent.size()));
    const auto at = spelling.rfind('.');
    if (elsewhere.empty() && spelling.substr(at == std::string::npos ? 0 : at + 1) == last)
      elsewhere = spelling;
  };
  for (const auto& row : schema().rows) consider(row.path);
  for (const auto& [spelling, row] : schema().by_path) consider(spelling);
  for (const auto& spelling : schema().also_written) consider(spelling);
  if (const auto word = nearest(last, siblings); !word.empty()) return parent + word;
  if (!elsewhere.empty()) return elsewhere;
  if (const auto word = nearest_start(last, siblings); !word.empty()) return parent + word;
  // Equal sections alone do not make keys similar.
  std::erase_if(paths, [&](const std::string& candidate) {
    return nearest(last, {candidate.substr(candidate.rfind('.') + 1)}).empty();
  });
  return nearest(path, paths);
}

std::string strategies_of(const SchemaRow& row) {
  if (!row.options.strategies.empty()) return std::string(row.options.strategies);
  for (const auto& section : schema_sections())
    if (!section.options.strategies.empty() && row.path.rfind(section.path + ".", 0) == 0)
      return std::string(section.options.strategies);
  return {};
}

bool belongs_to_strategy(const SchemaRow& row, const Recipe& r) {
  const std::string owners = strategies_of(row);
  if (owners.empty()) return true;
  for (const auto& owner : split(owners, ' '))
    if (owner == enum_name(r.distributed.strategy)) return true;
  return false;
}

}  // namespace mtrain::recipe
