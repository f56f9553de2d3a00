// A recipe that is fit to run: read, and held against every rule.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::plan {

// read_recipe() and validate_recipe() in one. All mistakes are collected in `problems`; the recipe
// is usable only if there is no error.
Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides,
                   Diagnostics& diagnostics, int64_t world = 1);

// The same for recipe text that is not in a file; `name` stands for it in messages.
Recipe load_recipe_text(const std::string& text, const std::string& name,
                        const std::vector<std::string>& overrides, Diagnostics& diagnostics,
                        int64_t world = 1);

// Holds the fields against each other on a world of that many ranks; 0 stands for the smallest one
// that fits.
void validate_recipe(const Recipe& recipe, Diagnostics& diagnostics, int64_t world = 1);

}  // namespace mtrain::plan
