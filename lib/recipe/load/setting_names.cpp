// The names by which a command line may set a field: without a section, or negated.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/load/foreign_keys.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {

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

std::vector<std::string> paths_of_word(const std::string& word) {
  std::vector<std::string> paths;
  std::vector<const SchemaRow*> rows;
  const auto consider = [&](const std::string& spelling, const SchemaRow* row) {
    if (last_word(spelling) != word || std::ranges::count(rows, row) > 0) return;
    rows.push_back(row);
    paths.push_back(spelling);
  };
  for (const auto& row : schema_rows()) {
    consider(row.path, &row);
    for (const auto& alias : row.aliases()) consider(alias, &row);
  }
  for (const auto& conversion : foreign_spellings())
    if (last_word(conversion.path) == word && paths.empty()) paths.emplace_back(conversion.path);
  return paths;
}

bool names_setting(std::string_view word) {
  const std::string name = normalize_path(word);
  for (std::string_view prefix : {"", "no_", "disable_"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string plain = name.substr(prefix.size());
    if (find_row(plain) || is_section_path(plain) || find_foreign_flag(plain) ||
        !paths_of_word(plain).empty())
      return true;
  }
  return false;
}

}  // namespace mtrain::recipe
