// Rules that hold fields against each other, one function per part of the recipe.
#pragma once
#include "recipe/recipe.h"

namespace mtrain {

void validate_model(const Recipe& recipe, Problems& problems);
void validate_data(const Recipe& recipe, Problems& problems);
void validate_train(const Recipe& recipe, Problems& problems);
void validate_optimizer(const Recipe& recipe, Problems& problems);

}  // namespace mtrain
