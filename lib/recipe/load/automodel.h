// What AutoModel's recipes mean where they leave something out. A file of AutoModel that trains
// there trains the same here.
#pragma once
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {

// Adds the defaults of AutoModel to `given.defaults` if the recipe is one of AutoModel, and reports
// those that differ from mtrain's.
void add_automodel_defaults(RawSettings& given, Diagnostics& diagnostics);

// Changes what a recipe of AutoModel has that means something else there. Call it before values are
// derived.
void take_automodel_values(Recipe& recipe, Diagnostics& diagnostics);

// Sets what AutoModel derives for its scheduler from the number of steps.
void derive_automodel_schedule(Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::recipe
