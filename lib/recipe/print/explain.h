#pragma once
#include <string>
#include <string_view>

namespace mtrain::recipe {

// Describes a field or a section, given by any of its names. For any other word it returns the
// results of a search: a different tool's name, and fields whose names or help texts contain the
// word. Throws UserError with the nearest name if nothing is found.
std::string explain(std::string_view word);

}  // namespace mtrain::recipe
