#include "recipe/print/row_text.h"

#include <cmath>

#include <fmt/core.h>

#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {

std::string join(const std::vector<std::string>& words, const char* quote) {
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += ", ";
    text += quote + word + quote;
  }
  return text;
}

std::string type_text(const SchemaRow& row) {
  const TypeInfo info = row.ops->info();
  std::string text = info.str();
  if (!info.choices.empty()) {
    text = info.kind == TypeInfo::Kind::list ? "list of: " : "";
    text += join(info.shown, "");
    if (info.may_be_none) text += ", or none";
    if (info.may_be_auto) text += ", or auto";
  }
  if (!row.options.unit.empty()) text += fmt::format(" ({})", row.options.unit);
  return text;
}

std::string range_text(const FieldOptions& o) {
  std::string text;
  if (std::isfinite(o.min)) text += fmt::format("{} {}", o.above_min ? "above" : "at least", o.min);
  if (std::isfinite(o.max))
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", o.below_max ? "below" : "at most", o.max);
  return text;
}

std::vector<std::string> all_spellings(const SchemaRow& row) {
  auto list = row.aliases();
  for (const auto& conversion : foreign_spellings())
    if (conversion.target == row.path) list.emplace_back(conversion.path);
  return list;
}

}  // namespace mtrain::recipe
