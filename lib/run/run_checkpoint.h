// A run's checkpoints: those of its training, with what the run itself must remember.
#pragma once
#include <filesystem>
#include <functional>
#include <string_view>

#include "train/trainer.h"

namespace mtrain::run {

// Saves into the folder `root`. All ranks call it; rank 0 returns the checkpoint's path, the others
// an empty one. `on_commit` (optional) is called before each step of the commit.
std::filesystem::path save_run(train::Trainer& trainer, const std::filesystem::path& root,
                               const std::function<void(std::string_view)>& on_commit = {});

// Makes the trainer go on from a checkpoint. UserError where it is of another run. All ranks call
// it.
void resume_run(train::Trainer& trainer, const std::filesystem::path& folder);

}  // namespace mtrain::run
