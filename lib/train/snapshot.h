// A run's state on disk: weights, optimizer moments and position, in one checkpoint folder.
#pragma once
#include <filesystem>

#include "checkpoint/checkpoint_dir.h"
#include "train/trainer.h"

namespace mtrain {

// model.safetensors (fp32 weights under their global names), optimizer.safetensors (<name>.m,
// <name>.v), state.json.
std::filesystem::path save_snapshot(Trainer& trainer, const Recipe& recipe,
                                    const std::filesystem::path& root);

// Puts everything back, so that the next step is the one the saved run would have made. UserError
// where the checkpoint is of another model or seed.
void load_snapshot(Trainer& trainer, const Recipe& recipe, const std::filesystem::path& folder);

// Weights only, into parameters that may have no gradients.
void load_weights(Stream& on, ParamStore& params, const std::filesystem::path& folder);

}  // namespace mtrain
