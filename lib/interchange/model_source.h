// The families of models in the form that readers of recipes use.
#pragma once
#include "recipe/model_source.h"

namespace mtrain::interchange {

// Returns the object to pass to every function that reads a recipe.
const recipe::ModelSource& model_source();

}  // namespace mtrain::interchange
