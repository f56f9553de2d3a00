// Diagnostics collects everything that is wrong with a recipe, so that all of it is reported at
// once, in the order of the file.
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
  // Names the kind of an error alone: the log begins its other lines with "warning" or "info".
  std::string str() const;
};

class Diagnostics {
 public:
  // Adds an error, which stops the run. `field` is a path such as "optimizer.lr"; its place in the
  // recipe is looked up.
  void add(std::string_view field, std::string reason, std::string hint = "");
  void warn(std::string_view field, std::string reason, std::string hint = "");
  // Notes a choice that mtrain made for the user: the value of an `auto`, or an adapted value.
  void resolved(std::string_view field, std::string reason);
  void add_at(Severity severity, SourceLocation location, std::string_view field,
              std::string reason, std::string hint = "");

  // Checks a rule over several fields. If `ok` is false, adds an error for the first of `fields`,
  // at the place of the first of them that the recipe sets. Adds nothing if one of the fields has
  // an error of its own, since `ok` was then computed from its default.
  void require(bool ok, std::initializer_list<std::string_view> fields, std::string reason,
               std::string hint = "");
  // Tells that the fields at and below `path` have not been read, since what sets them is wrong.
  void distrust(std::string_view path);
  // Whether none of the fields has an error of its own, or is distrusted.
  bool sound(std::initializer_list<std::string_view> fields) const;
  bool reported(std::string_view field) const;  // whether there is an error for this field

  // Notes where a field or a section is set.
  void set_location(std::string_view field, SourceLocation location);
  // Returns the place of the field, or else that of the nearest section around it.
  SourceLocation location_of(std::string_view field) const;
  // Sources are reported in the order in which they are added.
  void add_source(const std::string& source);

  bool has_errors() const;
  std::vector<Diagnostic> sorted() const;     // by source and line
  std::string text(Severity severity) const;  // a paragraph for each of that severity
  void throw_if_errors() const;               // throws one UserError with all errors

 private:
  std::vector<Diagnostic> diagnostics_;
  std::map<std::string, SourceLocation, std::less<>> locations_;
  std::set<std::string, std::less<>> wrong_;
  std::set<std::string, std::less<>> distrusted_;
  std::vector<std::string> sources_;
};

}  // namespace mtrain::recipe

// A word of the whole house.
namespace mtrain {
using recipe::Diagnostics;
}  // namespace mtrain
