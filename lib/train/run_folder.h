// Which run a folder belongs to: a run never mixes its files with another's, and never removes
// them.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "storage/checkpoint_dir.h"
#include "launch/job.h"
#include "recipe/recipe.h"

namespace mtrain {

// The checkpoint that the recipe's run starts from, none for a new run: what checkpoint.load names.
// A job that was started again goes on from the newest checkpoint that it has saved itself, and
// starts like the first time while there is none. UserError where the run folder or the folder of
// checkpoints holds another run's files; nothing is changed.
std::optional<CheckpointRef> claim_run_folder(const Recipe& recipe, const Job& job);

// UserError where it cannot be made; what killed runs left half-written in it is removed.
void make_run_folder(const Recipe& recipe);

// Call when that checkpoint has been loaded, and before anything is written. What the run leaves
// behind gets another name: checkpoints of later steps than the one it starts from, with the
// metrics of their way, and the metrics of a run that died before its first checkpoint. Returns a
// line for each.
std::vector<std::string> set_aside_abandoned(const Recipe& recipe,
                                             const std::optional<CheckpointRef>& start);

// Call after that, and before the run writes anything else: what will be found in the run folder
// and in the folder of checkpoints is this job's from here on. `job_ids` are those of all ranks, by
// any of which claim_run_folder knows the job again when it is started once more; `start` is what
// this start began from.
void write_job(const Recipe& recipe, const std::vector<std::string>& job_ids, int restarts,
               const std::optional<CheckpointRef>& start);

// The checkpoint that a path names: one itself, or the newest of a folder of checkpoints or of a
// run folder.
std::optional<CheckpointRef> locate_checkpoint(const std::filesystem::path& path);

}  // namespace mtrain
