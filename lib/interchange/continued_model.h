// A run with model.from that continues from a checkpoint does not need that folder any more: the
// sizes are those of the checkpoint's recipe, and the weights its own.
#pragma once
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::interchange {

// Returns the text of the recipe in the checkpoint from which a run of this recipe continues, for
// plan::load_recipe(); empty if it begins anew, has no model.from, or the checkpoint's run began
// from another folder. `restarted` says whether a launcher starts the job again, which then
// continues from what it has saved. Mistakes of the recipe are left to whoever loads it.
std::string continued_model(const std::string& recipe, const std::vector<std::string>& overrides,
                            bool restarted);

// Returns the recipe without its tokenizer.path if such a run has lost that file: the saved recipe
// says the size of the vocabulary, and training does without the texts of tokens.
recipe::Recipe without_lost_tokenizer(recipe::Recipe recipe, const std::string& saved_model);

}  // namespace mtrain::interchange
