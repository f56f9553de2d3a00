// Finds the checkpoint that a path names.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "storage/checkpoint_dir.h"

namespace mtrain::interchange {

// Returns the checkpoint at `path`, or the newest one if `path` is a folder of checkpoints or of a
// run. A run's recipe may name a different folder for its checkpoints. Returns nothing if there is
// no checkpoint. Throws UserError if that recipe cannot be read.
std::optional<storage::CheckpointRef> locate_checkpoint(const std::filesystem::path& path);

// Returns the folder of checkpoints at `path`: the folder itself, or that of a run. Returns nothing
// if there is none. It may hold damaged checkpoints alone.
std::optional<std::filesystem::path> locate_checkpoints(const std::filesystem::path& path);

// Returns the checkpoint that the setting checkpoint.load names; `load` must not be `latest`. It is
// a path for locate_checkpoint(). If that finds nothing and `load` is `best`, returns the
// checkpoint to which the link `checkpoint_dir`/best leads.
std::optional<storage::CheckpointRef> locate_start(const std::string& load,
                                                   const std::filesystem::path& checkpoint_dir);

}  // namespace mtrain::interchange
