// Overrides of the command line: path=value and ~path.
#include <algorithm>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

void reset(const std::string& path, const SourceLocation& location, Diagnostics& diagnostics,
           RawSettings& given) {
  if (const SchemaRow* row = find_row(path)) {
    given.drop(row->path);
    for (const ForeignSpelling& name : foreign_spellings())
      if (name.target == row->path) given.drop(part_key(name));
  } else if (is_section_path(path)) {
    given.drop(path + ".*");
  } else {
    const std::string meant = nearest_key(path);
    diagnostics.add_at(Severity::error, location, path, "there is no such key",
                       meant.empty() ? "" : fmt::format("did you mean `~{}`?", meant));
  }
}

}  // namespace

bool holds_secrets(std::string_view text) {
  std::string_view name = trim(text.substr(0, text.find('=')));
  name.remove_prefix(std::min(name.find_first_not_of("+~"), name.size()));
  const std::string path = normalize_path(name);
  if (path == "launch" || path.ends_with(".env")) return true;
  for (const std::string variables : {"env", "env_vars", "launch.env"})
    if (path == variables || path.starts_with(variables + ".")) return true;
  return false;
}

void apply_override(const ModelSource& models, const std::string& text, const std::string& source,
                    Diagnostics& diagnostics, RawSettings& given) {
  const SourceLocation location{source, 0, 0};
  const auto equals = text.find('=');
  if (!text.empty() && text[0] == '+') {
    diagnostics.add_at(Severity::error, location, "",
                       "a new key cannot be added; every key of a recipe is known",
                       "leave the + out");
    return;
  }
  if (!text.empty() && text[0] == '~')
    return reset(
        path_of_argument(models, given,
                         normalize_path(trim(std::string_view(text).substr(1, equals - 1)))),
        location, diagnostics, given);
  if (equals == std::string::npos || equals == 0) {
    diagnostics.add_at(Severity::error, location, "", "this is not an override",
                       "write path=value, such as optimizer.lr=1e-4, or ~path to reset a field");
    return;
  }
  const std::string path = path_of_argument(
      models, given, normalize_path(trim(std::string_view(text).substr(0, equals))));
  Node node;
  const std::string value = text.substr(equals + 1);
  if (!parse_override_value(value, holds_secrets(text) ? "..." : value, source, path, diagnostics,
                            node))
    return;
  given.merge(flatten_override(models, path, location, node, diagnostics), diagnostics);
}

}  // namespace mtrain::recipe
