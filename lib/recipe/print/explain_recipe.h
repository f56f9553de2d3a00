// What became of each key of a recipe, such as one of another system.
#pragma once
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::recipe {

struct KeyOutcome {
  std::string key;  // as the file writes it: "step_scheduler.max_steps"
  int line = 0;
  std::string outcome;  // "train.steps: 100", or why it sets nothing
};

// Returns the keys of the YAML text `text`, in its order. `recipe` and `diagnostics` are those that
// it was loaded into, under the name `name`.
std::vector<KeyOutcome> explain_recipe(const std::string& text, const std::string& name,
                                       const Recipe& recipe, const Diagnostics& diagnostics);

}  // namespace mtrain::recipe
