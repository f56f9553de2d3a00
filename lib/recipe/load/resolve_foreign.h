// Reads the values of other systems' keys in Recipe::foreign, which decide fields together with
// other settings.
#pragma once
#include "recipe/recipe.h"

namespace mtrain::recipe {

// Converts Megatron's warm-up, a fraction of the decay steps, to a number of steps.
void take_warmup_fraction(Recipe& recipe, Diagnostics& diagnostics);
// Sets fields from the other keys. Must run before other values are derived.
void take_foreign_values(Recipe& recipe, Diagnostics& diagnostics);
// Applies main_grads_dtype, or reports that it contradicts the precision, which must be derived.
void check_foreign_values(Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::recipe
