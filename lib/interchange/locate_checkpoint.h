// Finds the checkpoint that a path means.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "storage/checkpoint_dir.h"

namespace mtrain::interchange {

// Returns the checkpoint at `path`: the folder itself, or the newest checkpoint of a folder of
// checkpoints or of a run folder, whose recipe may name another folder for them; nothing if there
// is none. Throws UserError if that recipe cannot be read.
std::optional<storage::CheckpointRef> locate_checkpoint(const std::filesystem::path& path);

// Returns what a checkpoint.load other than `latest` means: locate_checkpoint(), or for `best`,
// where that finds nothing, the checkpoint that the link of this name in `checkpoint_dir` names.
std::optional<storage::CheckpointRef> locate_start(const std::string& load,
                                                   const std::filesystem::path& checkpoint_dir);

}  // namespace mtrain::interchange
