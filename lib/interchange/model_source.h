// The families of models, as a recipe asks for them.
#pragma once
#include "recipe/model_source.h"

namespace mtrain::interchange {

// Returns what every reader of recipes is given.
const recipe::ModelSource& model_source();

}  // namespace mtrain::interchange
