// Reads the recipe that a run has saved beside its files.
#pragma once
#include <cstdint>
#include <filesystem>
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

// A recipe that was printed for later.
struct SavedRecipe {
  std::filesystem::path file;  // where it is; messages name it
  std::string text = {};       // the recipe itself, if it is in no file
  Machine machine = {};        // what `train.device: auto` may take
  std::string read() const;    // returns the text
};

struct SavedRun {
  FolderOptions folders;
  TokenizerOptions tokenizer;
  spec::ModelSpec model;  // without a vocabulary
  int64_t sample_length = 0;
  DevicePlan device;
};

// Throws UserError if this version cannot load the recipe.
SavedRun read_saved_run(const recipe::ModelSource& models, const SavedRecipe& recipe);

// Makes the plan of the recipe for `world` ranks, with `overrides` of its settings, and for a model
// of `vocab` tokens. A single rank leaves the layout of the saved run out. Throws UserError with
// all mistakes, if the recipe does not fit so many ranks.
RunPlan saved_run_plan(const recipe::ModelSource& models, const SavedRecipe& recipe,
                       std::vector<std::string> overrides, int64_t world, int64_t vocab);

// Compares a saved recipe with `present`, the text of this run's recipe. Returns a line for each
// setting that must agree in a resumed run and does not: settings of what the network computes and
// of the order of the data. Returns "" if all agree. Throws UserError if this version cannot load
// the saved recipe. `data_compared`: the caller has compared what the data hold, so their paths
// need not agree.
std::string resume_differences(const recipe::ModelSource& models, const SavedRecipe& recipe,
                               const std::string& present, bool data_compared = false);

// Returns what else differs, such as "optimizer.lr 0.001 -> 0.0005, train.steps 40 -> 80"; empty if
// nothing does. Where a run's files are does not count.
std::string resume_changes(const recipe::ModelSource& models, const SavedRecipe& recipe,
                           const std::string& present);

}  // namespace mtrain::plan
