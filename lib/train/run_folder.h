// Which run a folder belongs to: a run never mixes its files with another's, and never removes
// them.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_dir.h"
#include "recipe/recipe.h"

namespace mtrain {

// The checkpoint that the recipe's run starts from, none for a new run. UserError where the run
// folder or the folder of checkpoints holds another run's files; nothing is changed.
std::optional<CheckpointRef> claim_run_folder(const Recipe& recipe);

// UserError where it cannot be made; what killed runs left half-written in it is removed.
void make_run_folder(const Recipe& recipe);

// Call when that checkpoint has been loaded, and before anything is written. What the run leaves
// behind gets another name: checkpoints of later steps than the one it starts from, with the
// metrics of their way, and the metrics of a run that died before its first checkpoint. Returns a
// line for each.
std::vector<std::string> set_aside_abandoned(const Recipe& recipe,
                                             const std::optional<CheckpointRef>& start);

// The checkpoint that a path names: one itself, or the newest of a folder of checkpoints or of a
// run folder.
std::optional<CheckpointRef> locate_checkpoint(const std::filesystem::path& path);

}  // namespace mtrain
