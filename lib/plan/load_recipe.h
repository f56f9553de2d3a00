// Loads a recipe: reads it, and checks it against every rule.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Returns a machine whose GPUs have these names. A build that cannot compute on GPUs passes none.
Machine machine_with(const std::vector<std::string>& gpus, int ranks_per_host);

// Calls read_recipe(), decides what depends on the machine and on how the recipe is written, and
// calls validate_recipe(). Collects all mistakes in `diagnostics`; the recipe can be used only if
// there is no error. `saved_model` replaces the folder of model.from (read_recipe()).
Recipe load_recipe(const recipe::ModelSource& models, const std::string& path,
                   const std::vector<std::string>& overrides, Diagnostics& diagnostics,
                   int64_t world = 1, const Machine& machine = {},
                   const std::string& saved_model = {});

// Does the same for recipe text that is not in a file; messages call it `name`.
Recipe load_recipe_text(const recipe::ModelSource& models, const std::string& text,
                        const std::string& name, const std::vector<std::string>& overrides,
                        Diagnostics& diagnostics, int64_t world = 1, const Machine& machine = {});

// Refuses what ranks on this machine cannot do. Only runs call it, because a plan may be for other
// machines.
void check_machine(const Recipe& recipe, const Machine& machine, Diagnostics& diagnostics);

// Calls recipe::resolve_epochs(), and then checks the settings that depend on the number of steps.
void resolve_epochs(Recipe& recipe, int64_t samples, Diagnostics& diagnostics);

// Checks the fields against each other for a world of `world` ranks; 0 stands for the smallest
// world that fits. check_supported() refuses features that are not supported yet
// (plan/rules/unsupported.h).
void validate_recipe(const Recipe& recipe, Diagnostics& diagnostics, int64_t world = 1);

}  // namespace mtrain::plan
