// Saves and loads the checkpoints of a run: the training's, and the run's choice of bf16
// arithmetic.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "train/trainer.h"

namespace mtrain::run {

// Saves a checkpoint into the folder `root`, and calls `on_commit`, if given, before each step of
// the commit. `exceeds_bytes` is what interchange::exceeds_bytes() will return of it. All ranks
// call it; rank 0 returns the checkpoint's path, the others an empty path.
std::filesystem::path save_run(train::Trainer& trainer, const std::filesystem::path& root,
                               const std::function<void(std::string_view)>& on_commit = {},
                               bool exceeds_bytes = false);

// Makes the trainer continue from the checkpoint in `folder`. Throws UserError if the checkpoint
// does not fit the run's model, data or seed. All ranks call it.
void resume_run(train::Trainer& trainer, const std::filesystem::path& folder);

// Gives a new run the weights of the Hugging Face folder that model.from names; without one it does
// nothing. Each rank reads what it owns. Throws UserError if the folder is not understood, is not
// the run's model, or is another one on some rank, which is named. Returns what to tell of tensors
// that are left out. All ranks call it.
std::string start_from_folder(train::Trainer& trainer);

}  // namespace mtrain::run
