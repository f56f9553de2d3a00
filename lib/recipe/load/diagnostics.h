// Diagnostics collects all mistakes of a recipe and reports them together, in the file's order.
#pragma once
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::recipe {

struct SourceLocation {
  std::string source;        // a file, or "the setting `train.steps=x`"
  int line = 0, column = 0;  // counted from 1; 0 if the source is not a file
  std::string str() const;   // "recipe.yaml:3:5"
  bool known() const { return !source.empty(); }
};

enum class Severity { error, warning, resolved };

struct Diagnostic {
  Severity severity;
  SourceLocation location;
  std::string field, reason, hint;
  // Only errors have their severity in the text: the log adds "warning" or "info" to the others.
  std::string str() const;
};

class Diagnostics {
 public:
  // Adds an error, which stops the run. `field` is a path such as "optimizer.lr", whose place
  // in the recipe is looked up.
  void add(std::string_view field, std::string reason, std::string hint = "");
  void warn(std::string_view field, std::string reason, std::string hint = "");
  // Adds a note about a choice of mtrain: the value of an `auto`, or an adapted value.
  void resolved(std::string_view field, std::string reason);
  void add_at(Severity severity, SourceLocation location, std::string_view field,
              std::string reason, std::string hint = "");

  // Checks a rule over several fields. If `ok` is false, adds an error for the first of `fields`,
  // at the place of the first of them that the recipe sets. Adds nothing if one of the fields has
  // an error of its own, since `ok` was then computed from its default.
  void require(bool ok, std::initializer_list<std::string_view> fields, std::string reason,
               std::string hint = "");
  // Marks the fields at and below `path` as unread, because the setting that decides them is wrong.
  void distrust(std::string_view path);
  // Returns true if none of the fields has an error of its own or is distrusted.
  bool sound(std::initializer_list<std::string_view> fields) const;
  bool reported(std::string_view field) const;  // whether there is an error for this field

  // Records where a field or a section is set.
  void set_location(std::string_view field, SourceLocation location);
  // Returns the place of the field, or that of the nearest section around a field that is not set.
  SourceLocation location_of(std::string_view field) const;
  // The diagnostics of a source that is added earlier are reported earlier.
  void add_source(const std::string& source);

  bool has_errors() const;
  std::vector<Diagnostic> sorted() const;     // by source and line
  std::string text(Severity severity) const;  // all diagnostics of that severity
  void throw_if_errors() const;               // throws one UserError with all errors

 private:
  std::vector<Diagnostic> diagnostics_;
  std::map<std::string, SourceLocation, std::less<>> locations_;
  std::set<std::string, std::less<>> wrong_;
  std::set<std::string, std::less<>> distrusted_;
  std::vector<std::string> sources_;
};

}  // namespace mtrain::recipe

// All of mtrain uses the name without `recipe::`.
namespace mtrain {
using recipe::Diagnostics;
}  // namespace mtrain
