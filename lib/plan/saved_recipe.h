// Reads the recipe that a run has saved with its files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/options/dataset_options.h"
#include "plan/options/device_plan.h"
#include "plan/options/train_options.h"
#include "plan/run_plan.h"
#include "spec/model_spec.h"

namespace mtrain::recipe {
class ModelSource;
}

namespace mtrain::plan {

// A recipe that an earlier run has printed.
struct SavedRecipe {
  std::filesystem::path file;  // the path; messages name it
  std::string text = {};       // the recipe itself, if it is not in a file
  Machine machine = {};        // what `train.device: auto` may use
  std::string read() const;    // returns the text
};

struct SavedRun {
  FolderOptions folders;
  TokenizerOptions tokenizer;
  spec::ModelSpec model;  // without a vocabulary
  int64_t sample_length = 0, global_batch_size = 0;
  std::optional<int64_t> validation_steps;  // empty: it had no validation data
  DevicePlan device;
};

// Throws UserError if this version cannot load the recipe.
SavedRun read_saved_run(const recipe::ModelSource& models, const SavedRecipe& recipe);

// Makes the plan of the recipe for `world` ranks, with `overrides` of its settings, and for a
// vocabulary of `vocab` tokens. With `world` 1 the layout of the saved run is ignored. Throws
// UserError with all mistakes if the recipe does not fit `world` ranks.
RunPlan saved_run_plan(const recipe::ModelSource& models, const SavedRecipe& recipe,
                       std::vector<std::string> overrides, int64_t world, int64_t vocab);

// Compares a saved recipe with `present`, the text of this run's recipe. Returns a line for each
// setting that must be the same in a resumed run and differs. Such settings decide what the network
// computes and the order of the data. Returns "" if there are none. Throws UserError if this
// version cannot load the saved recipe. `data_compared`: the caller has compared the data
// themselves, so their paths may differ.
std::string resume_differences(const recipe::ModelSource& models, const SavedRecipe& recipe,
                               const std::string& present, bool data_compared = false);

struct SettingDifference {
  std::string path, a, b;  // the setting, and its values as recipes are printed
};

struct SavedComparison {
  // Without the folders and files that a run writes.
  std::vector<SettingDifference> differences;
  bool fp32 = false;  // both compute in fp32
};

// Compares the recipes of two runs. Throws UserError if this version cannot load one.
SavedComparison compare_saved(const recipe::ModelSource& models, const SavedRecipe& a,
                              const SavedRecipe& b);

// Returns all settings that differ, such as "optimizer.lr 0.001 -> 0.0005, train.steps 40 -> 80";
// empty if there are none. Paths of a run's files do not count.
std::string resume_changes(const recipe::ModelSource& models, const SavedRecipe& recipe,
                           const std::string& present);

}  // namespace mtrain::plan
