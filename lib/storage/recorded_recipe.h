// The recipe under which a checkpoint was saved: what its model, tokenizer and data are.
#pragma once
#include <filesystem>
#include <string>

namespace mtrain::storage {

// The entry of state.json that holds the text of the recipe. recipe.yaml is a copy to read.
inline constexpr const char* kRecipeEntry = "recipe";

struct RecordedRecipe {
  std::filesystem::path file;  // messages name it
  std::string text;            // empty: it stands in `file`, as earlier versions saved it
};

// Throws as TrainState::load() does.
RecordedRecipe recorded_recipe(const std::filesystem::path& checkpoint);

}  // namespace mtrain::storage
