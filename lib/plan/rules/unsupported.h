#pragma once
#include "recipe/recipe.h"

namespace mtrain::plan {

// Adds an error for every feature that the recipe asks for and that cannot be run yet. A run calls
// it first; checking and printing a recipe do without it.
void check_supported(const Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::plan
