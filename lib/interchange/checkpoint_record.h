// The recipe that a checkpoint records in its state.json, and the copy of it in recipe.yaml.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::interchange {

// Returns how recipe.yaml differs from the recipe that the checkpoint records, or why it cannot be
// read. Returns "" if all values agree (comments and layout may differ), or if the checkpoint
// records no recipe. Only this message depends on recipe.yaml.
std::string changed_copy(const std::filesystem::path& checkpoint);

// Logs a warning if changed_copy() returns a text. Logs a note if the checkpoint has no checksums
// because an earlier version saved it. One rank calls it for each checkpoint that is used.
void report_checkpoint(const std::filesystem::path& checkpoint);

// Returns the text of the recipe with which the checkpoint was saved. Throws UserError.
std::string recorded_text(const std::filesystem::path& checkpoint);
// Returns that recipe with changed settings ("~model.from" removes one). Throws UserError.
recipe::Recipe recorded_recipe(const std::filesystem::path& checkpoint,
                               const std::vector<std::string>& overrides);
// Returns its section `model`, or an empty one if the recipe has mistakes. The folder that
// model.from names may be gone.
recipe::ModelConfig recorded_model(const std::filesystem::path& checkpoint);

}  // namespace mtrain::interchange
