#include "recipe/problems.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <fmt/core.h>

#include "base/error.h"

namespace mtrain {

std::string Place::str() const {
  return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
}

std::string Problem::str() const {
  const char* kind = severity == Severity::error     ? "error"
                     : severity == Severity::warning ? "warning"
                                                     : "resolved";
  std::string s = place.known() ? place.str() + ": " : "";
  s += fmt::format("{}: ", kind);
  if (!field.empty()) s += field + ": ";
  s += reason;
  if (!hint.empty()) s += "\n    hint: " + hint;
  return s;
}

void Problems::add(std::string_view field, std::string reason, std::string hint) {
  add_at(Severity::error, place_of(field), field, std::move(reason), std::move(hint));
}

void Problems::warn(std::string_view field, std::string reason, std::string hint) {
  add_at(Severity::warning, place_of(field), field, std::move(reason), std::move(hint));
}

void Problems::resolved(std::string_view field, std::string reason) {
  add_at(Severity::resolved, place_of(field), field, std::move(reason));
}

void Problems::add_at(Severity severity, Place place, std::string_view field, std::string reason,
                      std::string hint) {
  if (severity == Severity::error) wrong_.emplace(field);
  if (!place.known() && !sources_.empty()) place.source = sources_.front();
  problems_.push_back(
      {severity, std::move(place), std::string(field), std::move(reason), std::move(hint)});
}

bool Problems::reported(std::string_view field) const {
  return std::any_of(problems_.begin(), problems_.end(), [&](const Problem& p) {
    return p.severity == Severity::error && p.field == field;
  });
}

void Problems::require(bool ok, std::initializer_list<std::string_view> fields, std::string reason,
                       std::string hint) {
  if (ok || !sound(fields)) return;
  Place place;
  for (auto field : fields)
    if (const auto at = places_.find(field); at != places_.end() && !place.known())
      place = at->second;
  if (!place.known()) place = place_of(*fields.begin());
  if (!place.known() && !sources_.empty()) place.source = sources_.front();
  // Not add(): a broken rule does not make the field unfit for the rules after it.
  problems_.push_back({Severity::error, std::move(place), std::string(*fields.begin()),
                       std::move(reason), std::move(hint)});
}

bool Problems::sound(std::initializer_list<std::string_view> fields) const {
  return std::none_of(fields.begin(), fields.end(),
                      [&](std::string_view f) { return wrong_.count(f) > 0; });
}

void Problems::set_place(std::string_view field, Place place) {
  places_.insert_or_assign(std::string(field), std::move(place));
}

Place Problems::place_of(std::string_view field) const {
  while (true) {
    if (const auto at = places_.find(field); at != places_.end()) return at->second;
    const auto dot = field.rfind('.');
    if (dot == std::string_view::npos) return {};
    field = field.substr(0, dot);
  }
}

void Problems::add_source(const std::string& source) {
  if (std::find(sources_.begin(), sources_.end(), source) == sources_.end())
    sources_.push_back(source);
}

bool Problems::has_errors() const {
  return std::any_of(problems_.begin(), problems_.end(),
                     [](const Problem& p) { return p.severity == Severity::error; });
}

std::vector<Problem> Problems::sorted() const {
  auto list = problems_;
  const auto key = [&](const Problem& p) {
    const auto source = std::find(sources_.begin(), sources_.end(), p.place.source);
    // What has no line of its own comes at the end of its file.
    const int line = p.place.line > 0 ? p.place.line : std::numeric_limits<int>::max();
    return std::tuple{source - sources_.begin(), line, p.place.column};
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Problem& a, const Problem& b) { return key(a) < key(b); });
  return list;
}

std::string Problems::text(Severity severity) const {
  std::string s;
  for (const auto& p : sorted()) {
    if (p.severity != severity) continue;
    if (!s.empty()) s += '\n';
    s += p.str();
  }
  return s;
}

void Problems::throw_if_errors() const {
  if (!has_errors()) return;
  const auto count = std::count_if(problems_.begin(), problems_.end(),
                                   [](const Problem& p) { return p.severity == Severity::error; });
  throw UserError(fmt::format("{} in the recipe:\n{}",
                              count == 1 ? "1 mistake" : fmt::format("{} mistakes", count),
                              text(Severity::error)));
}

}  // namespace mtrain
