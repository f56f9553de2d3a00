#include "storage/recorded_recipe.h"

#include <system_error>

#include "storage/manifest.h"
#include "storage/state.h"

namespace mtrain::storage {

RecordedRecipe recorded_recipe(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / "state.json";
  std::error_code error;
  if (std::filesystem::exists(file, error))
    if (const TrainState state = TrainState::load(file); state.contains(kRecipeEntry))
      return {file, state.text(kRecipeEntry)};
  return {checkpoint / kRecipeCopy, ""};
}

}  // namespace mtrain::storage
