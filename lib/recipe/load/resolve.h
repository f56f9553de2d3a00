// Derives the values that follow from other fields.
#pragma once
#include "recipe/load/diagnostics.h"
#include "recipe/recipe.h"

namespace mtrain::recipe {

// Sets the fields whose values follow from other fields. `family` has the defaults of the recipe's
// architecture.
void resolve_recipe(const ModelConfig& family, Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::recipe
