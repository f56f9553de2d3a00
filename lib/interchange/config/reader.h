// Reads a model from the config.json of a Hugging Face folder. A key that changes results and that
// mtrain does not know is an error, never dropped.
#pragma once
#include <string>
#include <vector>

#include "recipe/load/raw_settings.h"
#include "recipe/recipe.h"

namespace mtrain::interchange {

// Adds to `given` what the folder named by its model.from says about the model. A size that the
// recipe gives as well must agree. After an error no rule judges the model.
void read_config_folder(recipe::RawSettings& given, Diagnostics& diagnostics);

// Returns a recipe whose model is that of a config.json with this text; messages call it `name`.
// `ignore_keys` is model.ignore_keys.
recipe::Recipe read_config_json(const std::string& text, const std::string& name,
                                Diagnostics& diagnostics,
                                const std::vector<std::string>& ignore_keys = {});

}  // namespace mtrain::interchange
