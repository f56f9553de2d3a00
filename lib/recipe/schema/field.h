// A Field is the row of a setting: its name, its member in the section's struct and its help. It is
// written once, in the struct of the member. Parsing, printing, the schema and the suggestions for
// misspelt keys all read these rows.
#pragma once
#include <limits>
#include <optional>
#include <string_view>

#include "base/enum_name.h"

namespace mtrain::recipe {

struct FieldOptions {
  std::string_view aliases = {};  // other spellings, dotted from the root, separated by blanks
  std::string_view unit = {};
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is refused
  bool below_max = false;  // max itself is refused
  bool lines = false;      // a text may have several lines
  // For the row of a section: `section: x` means `section: {shorthand: x}`.
  std::string_view shorthand = {};
  std::string_view strategies = {};  // the only strategies that read it, separated by blanks
  std::string_view auto_word = {};   // another word for `auto`
  // 0 and negative numbers mean "not set", as in other systems' sizes of parallel groups.
  bool zero_is_unset = false;
  std::string_view none_means = {};  // the value that none, null and ~ mean
  // Why a value that nothing reads is accepted; empty for all other fields.
  std::string_view no_effect = {};
};

template <class Section, class T>
struct Field {
  std::string_view name;
  T Section::*member;
  std::string_view help;
  FieldOptions options;

  constexpr Field(std::string_view its_name, T Section::*its_member, std::string_view its_help,
                  FieldOptions its_options = {})
      : name(its_name), member(its_member), help(its_help), options(its_options) {}
};

// A value that mtrain chooses unless the recipe sets it. An empty one is printed as `auto`.
template <class T>
struct Auto : std::optional<T> {
  using std::optional<T>::optional;
};

}  // namespace mtrain::recipe
