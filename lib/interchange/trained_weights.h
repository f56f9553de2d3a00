// The weights of a checkpoint whose recipe may have adapters. A checkpoint that began with a base
// model has the adapters alone; the base is the Hugging Face folder model.from.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "interchange/hf_folder.h"
#include "interchange/merged_weights.h"
#include "recipe/recipe.h"
#include "storage/checkpoint_tensors.h"

namespace mtrain::interchange {

// The key of state.json with the base_content() of the base model. Earlier versions wrote another
// hash as `base_model`, which is not compared.
inline constexpr const char* kBaseContent = "base_content";

// Returns a hash of the tensors of a folder (storage::tensors_content). It does not depend on how
// they are spread over files.
std::string base_content(const HfFolder& folder);

// Warns that the checkpoint has no hash with which the base model could be compared.
void warn_of_unrecorded_base(const std::filesystem::path& checkpoint,
                             const std::filesystem::path& base);

// Returns the recipe's model with its adapters.
spec::ModelSpec adapted_model(const recipe::Recipe& recipe);

struct TrainedWeights {
  std::shared_ptr<const storage::CheckpointTensors> file;  // the tensors of the checkpoint
  // All weights under mtrain's names, without the effect of the adapters: those of the checkpoint,
  // or of the base model.
  std::shared_ptr<const storage::ValueSource> weights;
  std::vector<Adapter> adapters;  // whose tensors are in the checkpoint
  std::string base;               // the folder of the base model; empty if it is not read

  // Returns the weights with the adapters merged into them.
  std::shared_ptr<const storage::ValueSource> merged() const;
};

// Opens the weights of `checkpoint`. If it has adapters alone, `base` is read, or, if that is
// empty, the recipe's model.from. Throws UserError if that folder is missing, or does not
// have the weights that the adapters were trained with. It also throws if the checkpoint lacks an
// adapter of its recipe, or has one that the recipe lacks.
// Logs a warning if the checkpoint has no hash of its base model. Without compare_base the hash is
// not compared: the caller has done so.
TrainedWeights open_trained(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& base = {}, bool compare_base = true);

}  // namespace mtrain::interchange
