// Reads a model from the config.json of a Hugging Face folder. A key that mtrain does not know and
// that may change results is an error. It is never ignored silently.
#pragma once
#include <string>
#include <vector>

#include "recipe/load/raw_settings.h"
#include "recipe/recipe.h"

namespace mtrain::interchange {

// Adds to `given` what the folder of its model.from says about the model. A size that the recipe
// also gives must agree. After an error, no rule checks the model section.
void read_config_folder(recipe::RawSettings& given, Diagnostics& diagnostics);

// Returns a recipe with the model of this text of a config.json, which messages call `name`.
// `ignore_keys` is the recipe's model.ignore_keys.
recipe::Recipe read_config_json(const std::string& text, const std::string& name,
                                Diagnostics& diagnostics,
                                const std::vector<std::string>& ignore_keys = {});

// Does the same for the config.json in `folder`.
recipe::Recipe read_config_file(const std::string& folder, Diagnostics& diagnostics,
                                const std::vector<std::string>& ignore_keys);

}  // namespace mtrain::interchange
