// Words of other systems that do not name a setting here and have no row in foreign_keys.cpp, and
// what to write instead. They are refused, because their units or meanings differ.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "recipe/load/node.h"

namespace mtrain::recipe {

struct WordHint {
  std::string_view word;  // a key or the last part of one, with underscores
  // What to write instead, with names of settings in `...`. A name alone means the same setting.
  std::string_view text;
  bool is_name() const;  // whether `text` is the name of a setting and not a sentence
  std::string hint() const;
};

std::span<const WordHint> word_hints();
// Returns the row of `path` or else that of its last part; null if there is none.
const WordHint* find_word_hint(std::string_view path);

// The name of another system's section, and mtrain's section that is nearest to it.
struct ForeignSection {
  std::string_view name, section;
};
// Returns the row of the section named `path`; null if there is none.
const ForeignSection* find_foreign_section(std::string_view path);

// Returns the hint for a key that does not exist: other systems' words first, then the nearest key,
// then the keys of its section.
std::string hint_for_unknown(const std::string& path);

}  // namespace mtrain::recipe
