// Values of other systems' keys that are kept in Recipe::foreign, and that decide a field together
// with other fields.
#pragma once
#include "recipe/recipe.h"

namespace mtrain::recipe {

// Takes Megatron's warm-up as a part of the steps over which the rate decays.
void take_warmup_fraction(Recipe& recipe, Diagnostics& diagnostics);
// Fills in fields from them before other values are derived.
void take_foreign_values(Recipe& recipe, Diagnostics& diagnostics);
// Compares them with the fields once all are derived.
void check_foreign_values(Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::recipe
