// Reports mistakes that are not, or not only, in a recipe.
#pragma once
#include <string_view>

#include "recipe/load/diagnostics.h"

namespace mtrain::recipe {

// Throws one UserError with all errors, if there are any. `place` completes its heading: "2
// mistakes in the cluster file".
void throw_mistakes(const Diagnostics& diagnostics, std::string_view place);

}  // namespace mtrain::recipe
