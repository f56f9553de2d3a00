// What later runs read of the recipe that a run has saved beside its files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "plan/options/dataset_options.h"
#include "plan/options/device_plan.h"
#include "plan/options/model_shape.h"
#include "plan/options/train_options.h"

namespace mtrain::plan {

struct SavedRun {
  FolderOptions folders;
  TokenizerOptions tokenizer;
  ModelShape model;  // without a vocabulary
  int64_t sample_length = 0;
  DevicePlan device;
};

// UserError where the recipe in this file cannot be read by this version.
SavedRun read_saved_run(const std::filesystem::path& file);

// Compares the recipe saved in `file` with the text of the present one: a line for each setting
// that a resumed run must have as the saved run had it, and has not. These are the settings of what
// the network computes and of the order of the data. Empty where all agree. UserError as above.
std::string resume_differences(const std::filesystem::path& file, const std::string& present);

}  // namespace mtrain::plan
