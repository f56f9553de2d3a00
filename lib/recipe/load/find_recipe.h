// Finds a ready recipe by its name, from any folder.
#pragma once
#include <string>
#include <vector>

#include "recipe/load/diagnostics.h"

namespace mtrain::recipe {

// Returns the folders of ready recipes that belong to the program at that path: `recipes` in a
// folder above it, as in a build tree, and `share/mtrain/recipes` beside its `bin`.
std::vector<std::string> recipe_folders(const std::string& program);

// Returns the path of the recipe that `name` means. A file of that name wins. Otherwise it is the
// name of a ready recipe, with or without .yaml ("llama3_8b"), or of a Megatron-Bridge function
// that configures the training of such a model ("llama32_1b_pretrain_config"). Reports the
// choice in `diagnostics`. If there is none, adds an error with the nearest name and returns "".
std::string find_recipe(const std::string& name, const std::vector<std::string>& folders,
                        Diagnostics& diagnostics);

}  // namespace mtrain::recipe
