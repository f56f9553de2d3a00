// Collects everything that is wrong with a recipe, so that all of it is reported at once, in the
// order of the file.
#pragma once
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::recipe {

struct SourceLocation {
  std::string source;        // a file, or "override 2"
  int line = 0, column = 0;  // from 1; 0: not in a file
  std::string str() const;   // "recipe.yaml:3:5", "override 2"
  bool known() const { return !source.empty(); }
};

enum class Severity { error, warning, resolved };

struct Diagnostic {
  Severity severity;
  SourceLocation location;
  std::string field, reason, hint;
  std::string str() const;
};

class Diagnostics {
 public:
  // A mistake that stops the run. `field` is a path such as "optimizer.lr"; its place in the recipe
  // is looked up.
  void add(std::string_view field, std::string reason, std::string hint = "");
  void warn(std::string_view field, std::string reason, std::string hint = "");
  // A value of `auto` that was chosen, or something adapted, without being asked.
  void resolved(std::string_view field, std::string reason);
  void add_at(Severity severity, SourceLocation location, std::string_view field,
              std::string reason, std::string hint = "");

  // A rule over several fields: reported at the first of `fields` when `ok` is false, at the place
  // of the first one that the recipe sets. Silent if one of them is already wrong in itself, for
  // then `ok` was computed from a default.
  void require(bool ok, std::initializer_list<std::string_view> fields, std::string reason,
               std::string hint = "");
  bool sound(std::initializer_list<std::string_view> fields) const;
  bool reported(std::string_view field) const;  // whether an error stands at this field

  // Where a field is set, and the order in which sources are reported.
  void set_location(std::string_view field, SourceLocation location);
  SourceLocation location_of(
      std::string_view field) const;  // of the field, else of the section around it
  void add_source(const std::string& source);

  bool has_errors() const;
  std::vector<Diagnostic> sorted() const;     // by source and line
  std::string text(Severity severity) const;  // one paragraph per problem of that severity
  void throw_if_errors() const;               // one UserError with all errors

 private:
  std::vector<Diagnostic> diagnostics_;
  std::map<std::string, SourceLocation, std::less<>> locations_;
  std::set<std::string, std::less<>> wrong_;
  std::vector<std::string> sources_;
};

}  // namespace mtrain::recipe

// A word of the whole house.
namespace mtrain {
using recipe::Diagnostics;
}  // namespace mtrain
