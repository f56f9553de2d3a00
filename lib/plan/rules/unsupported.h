#pragma once
#include "recipe/recipe.h"

namespace mtrain {

// Adds an error for every feature that the recipe asks for and that has no execution yet. To be
// called before running; checking and printing a recipe do without.
void check_supported(const Recipe& recipe, Problems& problems);

}  // namespace mtrain
