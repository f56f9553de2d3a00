#pragma once
#include <string>
#include <string_view>

namespace mtrain::recipe {

// Describes a field or a section, which may be given by any of its names; or what is found by a
// word: another tool's name, and fields whose names or help texts have it. Throws UserError with
// the nearest name if nothing is found.
std::string explain(std::string_view word);

}  // namespace mtrain::recipe
