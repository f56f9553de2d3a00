// The configuration map: Hugging Face's config.json to mtrain's model section and back, by
// the keys of each family (config/keys.h).
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::interchange {

// Returns a recipe with the model of the config.json in `folder`, its sizes resolved. Throws one
// UserError that lists every mistake: keys and values that mtrain does not know or cannot compute.
// `ignore_keys` is the recipe's model.ignore_keys.
recipe::Recipe read_config(const std::filesystem::path& folder,
                           const std::vector<std::string>& ignore_keys = {});

// What config.json is to say beside the model.
struct ConfigText {
  std::string base;   // the text of another config.json, whose other keys are kept; or empty
  std::string dtype;  // torch_dtype: "float32", "bfloat16", "float16"
};

// Returns the text of a config.json that is read as the same model. Throws UserError, which lists
// the fields that no family can say, if there is none. The family is that of the model's
// architecture if it can say all, else the first that can; `model_type` becomes its name.
std::string write_config(const recipe::Recipe& recipe, const ConfigText& text,
                         std::string& model_type);

// Returns a line for each fact about what the two models compute in which they differ:
// "model.window_size: 128, not 0".
std::vector<std::string> model_differences(const recipe::ModelConfig& a,
                                           const recipe::ModelConfig& b);

// Adds an error for each such fact in which a recipe with model.from differs from that folder: a
// field that its config.json has no key for must have the value that the family computes with.
void check_folder_model(const recipe::Recipe& recipe, Diagnostics& diagnostics);

}  // namespace mtrain::interchange
