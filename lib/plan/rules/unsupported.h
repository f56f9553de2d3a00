// Refuses features that recipes may ask for and this build cannot run yet.
#pragma once
#include "recipe/recipe.h"

namespace mtrain::plan {

// Adds an error for every such feature that the recipe asks for. Runs and dry runs call it: a
// recipe can be checked and printed without it.
void check_supported(const Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::plan
