// Converts Hugging Face's config.json to mtrain's model section and back. config/keys.h has the
// keys of each model family.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::interchange {

// Returns a recipe with the model of the config.json in `folder`, its sizes resolved. Throws one
// UserError that lists all mistakes: keys and values that mtrain does not know or cannot compute.
// `ignore_keys` is the recipe's model.ignore_keys.
recipe::Recipe read_config(const std::filesystem::path& folder,
                           const std::vector<std::string>& ignore_keys = {});

// What write_config() writes in addition to the model.
struct ConfigText {
  std::string base;   // the text of an original config.json, whose other keys are kept; or empty
  std::string dtype;  // torch_dtype: "float32", "bfloat16", "float16"
};

// Returns the text of a config.json that read_config() reads as the same model. Its family,
// `model_type`, is that of the model's architecture if possible, else the first that can express
// the model. If none can, throws UserError with the differences from the nearest.
std::string write_config(const recipe::Recipe& recipe, const ConfigText& text,
                         std::string& model_type);

// Adds an error for each setting in which a recipe with model.from describes a different model from
// that folder. If config.json has no key for a field, the field must have the value with which the
// family computes.
void check_folder_model(const recipe::Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::interchange
