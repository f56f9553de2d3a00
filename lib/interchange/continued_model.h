// A run with model.from that resumes from a checkpoint no longer needs the folder of model.from.
// The checkpoint has the weights, and its recipe has the sizes.
#pragma once
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::interchange {

// Returns the text of the recipe in the checkpoint from which a run of this recipe resumes, for
// plan::load_recipe(). Returns "" if it starts from scratch, has no model.from, or the checkpoint's
// run had a different one. `restarted`: a launcher has restarted the job, which resumes from its
// own newest checkpoint. Mistakes of the recipe are left to load_recipe().
std::string continued_model(const std::string& recipe, const std::vector<std::string>& overrides,
                            bool restarted);

// Returns the recipe, but without tokenizer.path if such a run no longer has that file. Training
// needs only the vocabulary's size, which the saved recipe has.
recipe::Recipe without_lost_tokenizer(recipe::Recipe recipe, const std::string& saved_model);

}  // namespace mtrain::interchange
