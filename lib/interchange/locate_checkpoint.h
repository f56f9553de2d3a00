// Finds the checkpoint that a path means.
#pragma once
#include <filesystem>
#include <optional>

#include "storage/checkpoint_dir.h"

namespace mtrain::interchange {

// Returns the checkpoint at `path`: the folder itself, or the newest checkpoint of a folder of
// checkpoints or of a run folder, whose recipe may name another folder for them; nothing if there
// is none. Throws UserError if that recipe cannot be read.
std::optional<storage::CheckpointRef> locate_checkpoint(const std::filesystem::path& path);

}  // namespace mtrain::interchange
