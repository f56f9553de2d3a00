// The differences between versions of Unicode. The tokenizers library uses three: Unicode 9 for
// normalization, 16 for regular expressions, and 17 for lower case and digits. The libraries of a
// system have others. These tables list the differences; with them ids are the same on every
// system. They were made by querying the library (0.23.3) for every code point.
#pragma once
#include <cstdint>
#include <span>

namespace mtrain::data {

struct CodePoints {
  uint32_t first, last;
};

// Characters that take part in normalization since Unicode 10, sorted. Unicode 9 knows none of
// them, so for the library each is a base character that neither changes nor composes.
std::span<const CodePoints> unknown_to_normal_forms();

struct StandIn {
  uint32_t first, last;
  uint32_t stand_in;  // has the category, the script and the length in UTF-8 of these characters
};

// Characters of Unicode 15 and 16, sorted, with older ones that regular expressions treat alike.
std::span<const StandIn> recent_characters();

// Returns the lower case of a character whose lower case utf8proc 2.8 does not know, else 0.
uint32_t recent_lowercase(uint32_t c);

}  // namespace mtrain::data
