// The recipe with which a checkpoint was saved; it names the model, the tokenizer and the data.
#pragma once
#include <filesystem>
#include <string>

namespace mtrain::storage {

// The entry of state.json that holds the text of the recipe. recipe.yaml is a copy for people.
inline constexpr const char* kRecipeEntry = "recipe";

struct RecordedRecipe {
  std::filesystem::path file;  // messages name it
  std::string text;            // empty: the recipe is in `file`, as earlier versions saved it
};

// Throws as TrainState::load() does.
RecordedRecipe recorded_recipe(const std::filesystem::path& checkpoint);

}  // namespace mtrain::storage
