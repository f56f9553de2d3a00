// Words of other systems that name no setting here and have no row in foreign_keys.h, and what to
// write instead. They are not accepted, since their units or meanings differ.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "recipe/load/node.h"

namespace mtrain::recipe {

struct WordHint {
  std::string_view word;  // the last part of a key, with underscores
  // What to write instead, with names of settings in `...`. A name alone means the same setting.
  std::string_view text;
  bool is_name() const;  // of a setting, and not a sentence
  std::string hint() const;
};

std::span<const WordHint> word_hints();
// Returns the row of the last part of `path`; null if there is none.
const WordHint* find_word_hint(std::string_view path);

// Returns the section here that another system's section of that name is nearest to; empty if there
// is none. `known` reports whether the name is another system's section at all.
struct ForeignSection {
  std::string_view name, section;
};
const ForeignSection* find_foreign_section(std::string_view path);

// Returns the hint for a key that does not exist: other systems' words first, then the nearest key,
// then the keys of its section.
std::string hint_for_unknown(const std::string& path);

}  // namespace mtrain::recipe
