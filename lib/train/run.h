// A training from start to end: device, data, banner, steps, evaluations, checkpoints, and what the
// user sees of them.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "launch/job.h"
#include "recipe/recipe.h"
#include "train/generate.h"

namespace mtrain {

struct RunOptions {
  Job job;               // this rank among all; alone by default
  bool profile = false;  // print the time of each operation at the end
};

// Returns when train.steps are done or a signal asked for an early, saved end. Throws UserError,
// RunError.
void run_training(const Recipe& recipe, const RunOptions& options);

// Continues `prompt` with the newest checkpoint of a run folder, or with one checkpoint.
void generate_from_run(const std::string& run, std::string_view prompt, GenerateOptions options,
                       const std::function<void(std::string_view)>& emit);

}  // namespace mtrain
