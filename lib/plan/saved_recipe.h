// Reads the recipe that a run has saved beside its files.
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

// Throws UserError if this version cannot load the recipe in `file`.
SavedRun read_saved_run(const std::filesystem::path& file);

// Compares the recipe saved in `file` with `present`, the text of this run's recipe. Returns a line
// for each setting that must agree in a resumed run and does not: settings of what the network
// computes and of the order of the data. Returns "" if all agree. Throws UserError if this version
// cannot load the recipe in `file`.
std::string resume_differences(const std::filesystem::path& file, const std::string& present);

}  // namespace mtrain::plan
