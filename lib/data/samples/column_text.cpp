#include "data/samples/column_text.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain::data {
namespace {

using Json = nlohmann::ordered_json;

std::string columns_of_row(const Json& row) {
  std::string names;
  for (const auto& [key, value] : row.items()) names += (names.empty() ? "" : ", ") + key;
  return names;
}

// Returns the number that a value is or, as in published data, spells.
std::optional<size_t> item_number(const Json& value) {
  if (value.is_number_unsigned()) return value.get<size_t>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  if (text.empty() || text.size() > 9 ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; }))
    return std::nullopt;
  return std::stoul(text);
}

// Returns the item of a list that the step "[0]" or "[column]" names; null if there is none.
const Json* item_of(const Json& row, const Json& list, std::string_view step) {
  const std::string name(step.substr(1, step.size() - 2));
  const Json* number_in = nullptr;
  if (const auto column = row.find(name); column != row.end()) number_in = &*column;
  const auto number = item_number(number_in ? *number_in : Json(name));
  return list.is_array() && number && *number < list.size() ? &list[*number] : nullptr;
}

}  // namespace

ColumnText::ColumnText(std::string_view text, std::string_view field) {
  std::string plain;
  const auto flush = [&] {
    if (!plain.empty()) parts_.push_back({.text = std::exchange(plain, {})});
  };
  for (size_t at = 0; at < text.size(); ++at) {
    const bool twice = at + 1 < text.size() && text[at] == text[at + 1];
    if ((text[at] == '{' || text[at] == '}') && twice) {
      plain += text[at++];
    } else if (text[at] == '{') {
      const size_t end = text.find('}', at);
      if (end == std::string_view::npos)
        throw UserError(fmt::format("{}: a brace is not closed in `{}`", field, text),
                        "write {column}, and {{ for a brace");
      flush();
      parts_.push_back(read_place(text.substr(at + 1, end - at - 1), field));
      at = end;
    } else if (text[at] == '}') {
      throw UserError(fmt::format("{}: a brace is not opened in `{}`", field, text),
                      "write {column}, and }} for a brace");
    } else {
      plain += text[at];
    }
  }
  flush();
}

ColumnText::Part ColumnText::read_place(std::string_view place, std::string_view field) {
  Part part{.text = std::string(place), .place = true};
  if (const size_t bar = place.find('|'); bar != std::string_view::npos) {
    if (trim(place.substr(bar + 1)) != "trim")
      throw UserError(
          fmt::format("{}: `{}` is not known in {{{}}}", field, trim(place.substr(bar + 1)), place),
          "the only word after | is trim");
    part.trims = true;
    place = place.substr(0, bar);
  }
  place = trim(place);
  std::string step;
  for (const char c : place) {
    if (c == '.' || c == '[') {
      if (!step.empty()) part.steps.push_back(std::exchange(step, {}));
      if (c == '[') step = "[";
    } else {
      step += c;
      if (c == ']') part.steps.push_back(std::exchange(step, {}));
    }
  }
  if (!step.empty()) part.steps.push_back(step);
  if (part.steps.empty() || part.steps[0][0] == '[' || step.starts_with('['))
    throw UserError(fmt::format("{}: `{{{}}}` names no column", field, part.text),
                    "write {column}, {column.key} or {column[0]}");
  return part;
}

bool ColumnText::render(const Json& row, LineFault& fault, std::string& out) const {
  for (const Part& part : parts_) {
    if (!part.place) {
      out += part.text;
      continue;
    }
    const Json* value = &row;
    bool of_empty_list = false;
    for (const std::string& step : part.steps) {
      const Json* next = nullptr;
      if (step[0] == '[')
        next = item_of(row, *value, step), of_empty_list = value->is_array() && value->empty();
      else if (const auto key = value->is_object() ? value->find(step) : value->end();
               key != value->end())
        next = &*key;
      value = next;
      if (!value) break;
    }
    if (!value && of_empty_list) continue;
    if (!value || !value->is_string()) {
      const bool column = row.contains(part.steps[0]);
      fault.why = column ? fmt::format("{{{}}} is not a text", part.text)
                         : fmt::format("the row has no column \"{}\", but {}", part.steps[0],
                                       columns_of_row(row));
      fault.hint = column ? "fix the row, or name another column"
                          : "name the columns of the data in `prompt` and `completion`, or "
                            "AutoModel's `column_mapping`";
      return false;
    }
    const std::string& text = value->get_ref<const std::string&>();
    out += part.trims ? std::string(trim(text)) : text;
  }
  return true;
}

}  // namespace mtrain::data
