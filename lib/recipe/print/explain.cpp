// Explains a setting, a section or any other word.
#include "recipe/print/explain.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "recipe/load/foreign_keys.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/word_hints.h"
#include "recipe/print/row_text.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

constexpr size_t kMaxListed = 30;

std::string explain_row(const SchemaRow& row) {
  std::string out = fmt::format("{}\n  {}\n  type      {}\n  default   {}\n", row.path, row.help,
                                type_text(row), row.show_default());
  if (const auto range = range_text(row.options); !range.empty())
    out += fmt::format("  range     {}\n", range);
  if (!row.options.strategies.empty())
    out += fmt::format("  strategy  {}\n", row.options.strategies);
  if (const auto spellings = all_spellings(row); !spellings.empty())
    out += fmt::format("  also      {}\n", join(spellings, ""));
  return out;
}

std::string explain_section(const SchemaSection& section) {
  std::string out = fmt::format("{}\n  {}\n\n", section.path, section.help);
  for (const auto& row : schema_rows())
    if (row.path.starts_with(section.path + "."))
      out += fmt::format("  {:<44} {}\n", row.path.substr(section.path.size() + 1), row.help);
  return out;
}

std::string explain_foreign(const ForeignKey& key, std::string_view raw) {
  std::string out;
  if (key.severity == Severity::resolved)
    out = fmt::format("{} has no effect in mtrain: {}\n", raw, key.reason);
  else
    out = fmt::format("{}: {}{}\n", raw, key.severity == Severity::error ? "" : "it ", key.reason);
  return key.hint.empty() ? out : out + fmt::format("  {}\n", key.hint);
}

// Returns the settings that the text of a hint names in `...`.
std::vector<const SchemaRow*> rows_of(const std::string& hint) {
  std::vector<const SchemaRow*> rows;
  const std::vector<std::string> parts = split(hint, '`');
  for (size_t i = 1; i < parts.size(); i += 2)
    if (const SchemaRow* row = find_row(parts[i])) rows.push_back(row);
  return rows;
}

bool is_named(const SchemaRow& row, const std::string& word) {
  if (fold_name(last_word(row.path)) == word) return true;
  return std::ranges::any_of(all_spellings(row),
                             [&](const auto& name) { return fold_name(last_word(name)) == word; });
}

// Returns whether each of the words occurs in the row's names or its help.
bool mentions(const SchemaRow& row, const std::vector<std::string>& words) {
  std::string names = fold_name(row.path);
  for (const auto& name : all_spellings(row)) names += " " + fold_name(name);
  const std::string help = to_lower(row.help);
  return std::ranges::all_of(words, [&](const std::string& word) {
    return names.find(fold_name(word)) != std::string::npos || help.find(word) != std::string::npos;
  });
}

// Returns the results of a search for one word, or several separated by blanks. They are the
// meaning here of a different tool's word, the settings of that name, and the settings whose names
// or help texts contain the words.
std::string search(std::string_view raw) {
  std::vector<std::string> words;
  for (const std::string& word : split(to_lower(raw), ' '))
    if (!word.empty()) words.push_back(word);
  if (words.empty()) return {};
  const std::string one = normalize_path(trim(raw));
  std::string out;
  std::vector<const SchemaRow*> explained;
  const auto explain_once = [&](const SchemaRow* row) {
    if (std::ranges::count(explained, row) > 0) return;
    explained.push_back(row);
    out += (out.empty() ? "" : "\n") + explain_row(*row);
  };
  if (const WordHint* hint = find_word_hint(one)) {
    out += fmt::format("{}: {}\n", raw, hint->hint());
    for (const SchemaRow* row : rows_of(hint->hint())) explain_once(row);
  }
  for (const SchemaRow& row : schema_rows())
    if (is_named(row, fold_name(one))) explain_once(&row);
  const ForeignKey* key = find_foreign_key(one);
  if (!key) key = find_foreign_flag(one);
  if (key) out += (out.empty() ? "" : "\n") + explain_foreign(*key, raw);
  std::string list;
  size_t listed = 0;
  for (const SchemaRow& row : schema_rows()) {
    if (std::ranges::count(explained, &row) > 0 || !mentions(row, words)) continue;
    if (++listed <= kMaxListed) list += fmt::format("  {:<44} {}\n", row.path, row.help);
  }
  if (listed > kMaxListed) list += fmt::format("  and {} more\n", listed - kMaxListed);
  if (listed > 0)
    out += fmt::format("{}settings whose names or help have {}:\n{}", out.empty() ? "" : "\n", raw,
                       list);
  return out;
}

}  // namespace

std::string explain(std::string_view raw) {
  const std::string path = normalize_path(raw);
  if (const SchemaRow* row = find_row(path)) return explain_row(*row);
  for (const auto& conversion : foreign_spellings())
    if (conversion.path == path)
      return fmt::format("{} sets {}\n\n{}", path, conversion.target,
                         explain_row(*find_row(conversion.target)));
  if (const SchemaSection* section = find_section(path)) return explain_section(*section);
  if (const std::string found = search(raw); !found.empty()) return found;
  throw UserError(fmt::format("there is no recipe field `{}`", raw), hint_for_unknown(path));
}

}  // namespace mtrain::recipe
