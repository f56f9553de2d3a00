#include "recipe/load/diagnostics.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <fmt/core.h>

#include "base/error.h"

namespace mtrain::recipe {

std::string SourceLocation::str() const {
  return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
}

std::string Diagnostic::str() const {
  std::string s = location.known() ? location.str() + ": " : "";
  if (severity == Severity::error) s += "error: ";
  if (!field.empty()) s += field + ": ";
  s += reason;
  if (!hint.empty()) s += "\n    hint: " + hint;
  return s;
}

void Diagnostics::add(std::string_view field, std::string reason, std::string hint) {
  add_at(Severity::error, location_of(field), field, std::move(reason), std::move(hint));
}

void Diagnostics::warn(std::string_view field, std::string reason, std::string hint) {
  add_at(Severity::warning, location_of(field), field, std::move(reason), std::move(hint));
}

void Diagnostics::resolved(std::string_view field, std::string reason) {
  add_at(Severity::resolved, location_of(field), field, std::move(reason));
}

void Diagnostics::add_at(Severity severity, SourceLocation location, std::string_view field,
                         std::string reason, std::string hint) {
  if (severity == Severity::error) wrong_.emplace(field);
  if (!location.known() && !sources_.empty()) location.source = sources_.front();
  diagnostics_.push_back(
      {severity, std::move(location), std::string(field), std::move(reason), std::move(hint)});
}

bool Diagnostics::reported(std::string_view field) const {
  return std::any_of(diagnostics_.begin(), diagnostics_.end(), [&](const Diagnostic& p) {
    return p.severity == Severity::error && p.field == field;
  });
}

void Diagnostics::require(bool ok, std::initializer_list<std::string_view> fields,
                          std::string reason, std::string hint) {
  if (ok || !sound(fields)) return;
  SourceLocation location;
  for (auto field : fields)
    if (const auto at = locations_.find(field); at != locations_.end() && !location.known())
      location = at->second;
  if (!location.known()) location = location_of(*fields.begin());
  if (!location.known() && !sources_.empty()) location.source = sources_.front();
  // Does not call add(): after a broken rule the field must remain sound for later rules.
  diagnostics_.push_back({Severity::error, std::move(location), std::string(*fields.begin()),
                          std::move(reason), std::move(hint)});
}

bool Diagnostics::sound(std::initializer_list<std::string_view> fields) const {
  const auto distrusted = [&](std::string_view f) {
    return std::ranges::any_of(distrusted_, [&](const std::string& path) {
      return f.starts_with(path) && (f.size() == path.size() || f[path.size()] == '.');
    });
  };
  return std::none_of(fields.begin(), fields.end(),
                      [&](std::string_view f) { return wrong_.count(f) > 0 || distrusted(f); });
}

void Diagnostics::distrust(std::string_view path) { distrusted_.emplace(path); }

void Diagnostics::set_location(std::string_view field, SourceLocation location) {
  locations_.insert_or_assign(std::string(field), std::move(location));
}

SourceLocation Diagnostics::location_of(std::string_view field) const {
  while (true) {
    if (const auto at = locations_.find(field); at != locations_.end()) return at->second;
    const auto dot = field.rfind('.');
    if (dot == std::string_view::npos) return {};
    field = field.substr(0, dot);
  }
}

void Diagnostics::add_source(const std::string& source) {
  if (std::find(sources_.begin(), sources_.end(), source) == sources_.end())
    sources_.push_back(source);
}

bool Diagnostics::has_errors() const {
  return std::any_of(diagnostics_.begin(), diagnostics_.end(),
                     [](const Diagnostic& p) { return p.severity == Severity::error; });
}

std::vector<Diagnostic> Diagnostics::sorted() const {
  auto list = diagnostics_;
  const auto key = [&](const Diagnostic& p) {
    const auto source = std::find(sources_.begin(), sources_.end(), p.location.source);
    // A diagnostic without a line comes at the end of its file.
    const int line = p.location.line > 0 ? p.location.line : std::numeric_limits<int>::max();
    return std::tuple{source - sources_.begin(), line, p.location.column};
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Diagnostic& a, const Diagnostic& b) { return key(a) < key(b); });
  return list;
}

std::string Diagnostics::text(Severity severity) const {
  std::string s;
  for (const auto& p : sorted()) {
    if (p.severity != severity) continue;
    if (!s.empty()) s += '\n';
    s += p.str();
  }
  return s;
}

void Diagnostics::throw_if_errors() const {
  if (!has_errors()) return;
  const auto count =
      std::count_if(diagnostics_.begin(), diagnostics_.end(),
                    [](const Diagnostic& p) { return p.severity == Severity::error; });
  // A single error that is about a file or a word is not called a mistake in the recipe.
  if (count == 1)
    for (const Diagnostic& p : diagnostics_)
      if (p.severity == Severity::error && p.field.empty() && p.location.line == 0)
        throw UserError(
            p.location.known() ? fmt::format("{}: {}", p.location.str(), p.reason) : p.reason,
            p.hint);
  const bool words = std::ranges::all_of(diagnostics_, [](const Diagnostic& p) {
    return p.severity != Severity::error || p.field.starts_with("--");
  });
  throw UserError(
      fmt::format("{} {}:\n{}", count == 1 ? "1 mistake" : fmt::format("{} mistakes", count),
                  words ? "on the command line" : "in the recipe", text(Severity::error)));
}

}  // namespace mtrain::recipe
