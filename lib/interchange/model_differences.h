// Compares two models by what they compute, and reports differences in the words of the recipe.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "recipe/schema/model.h"

namespace mtrain::interchange {

struct ModelDifference {
  std::string_view setting;  // "model.window_size"
  std::string in_a, in_b;    // its values, as a recipe has them

  std::string text() const;  // "model.window_size: 128, not none"
};

// Returns the settings that make `b` compute something else than `a`; none if the two are the same
// model. Settings that only training reads are not compared.
std::vector<ModelDifference> model_differences(const recipe::ModelConfig& a,
                                               const recipe::ModelConfig& b);

// Returns the same model in the settings that model_differences() compares: where several settings
// say the same, one of them says it, and the others have their defaults.
recipe::ModelConfig in_one_form(const recipe::ModelConfig& model);

}  // namespace mtrain::interchange
