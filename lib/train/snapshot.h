// A run's state on disk: weights, optimizer moments and position, in one checkpoint folder.
#pragma once
#include <filesystem>
#include <functional>
#include <string_view>

#include "storage/checkpoint_dir.h"
#include "train/trainer.h"

namespace mtrain {

// model.safetensors (fp32 weights under their global names), optimizer.safetensors (<name>.m,
// <name>.v), state.json and the resolved recipe.yaml, the same under every layout. All ranks call
// it; rank 0 writes, and the others return, when all is on disk, an empty path.
// `on_commit` (optional) is called before each step of the commit.
std::filesystem::path save_snapshot(Trainer& trainer, const Recipe& recipe,
                                    const std::filesystem::path& root,
                                    const std::function<void(std::string_view)>& on_commit = {});

// The recipe that a checkpoint was saved under.
Recipe load_saved_recipe(const std::filesystem::path& folder);

// Puts everything back, so that the next step is the one the saved run would have made. UserError
// that lists every difference where the checkpoint is of another model, data or seed.
void load_snapshot(Trainer& trainer, const Recipe& recipe, const std::filesystem::path& folder);

// Weights only, into parameters that may have no gradients. UserError where the checkpoint has
// other tensors than the parameters, be it more of them.
void load_weights(Stream& on, ParamStore& params, const std::filesystem::path& folder);

}  // namespace mtrain
