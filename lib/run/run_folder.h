// Which run a folder belongs to: a run never mixes its files with another's, and never removes
// them.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launch/job.h"
#include "plan/options/train_options.h"
#include "storage/checkpoint_dir.h"

namespace mtrain::run {

// Returns the checkpoint that a run starts from, which is what checkpoint.load names; none for a
// new run. A job that was started again goes on from the newest checkpoint that it has saved
// itself, and starts like the first time while there is none. UserError where the run folder or the
// folder of checkpoints holds another run's files; nothing is changed.
std::optional<storage::CheckpointRef> claim_run_folder(const plan::FolderOptions& folders,
                                                       const launch::Job& job);

// Makes the run folder, and removes what killed runs left half-written in it. UserError where it
// cannot be made.
void make_run_folder(const plan::FolderOptions& folders);

// Renames what the run leaves behind: checkpoints of later steps than the one that it starts from,
// with the metrics of these steps, and the metrics of a run that died before its first checkpoint.
// Returns a line for each. Call it when that checkpoint has been loaded, and before anything is
// written.
std::vector<std::string> set_aside_abandoned(const plan::FolderOptions& folders,
                                             const std::optional<storage::CheckpointRef>& start);

// Notes in the run folder that what will be found there and in the folder of checkpoints is this
// job's from here on. `job_ids` are those of all ranks, by any of which claim_run_folder knows the
// job again when it is started once more; `start` is what this start began from. Call it after
// set_aside_abandoned(), and before the run writes anything else.
void write_job(const plan::FolderOptions& folders, const std::vector<std::string>& job_ids,
               int restarts, const std::optional<storage::CheckpointRef>& start);

// Returns the checkpoint that a path names: itself, or the newest of a folder of checkpoints or of
// a run folder.
std::optional<storage::CheckpointRef> locate_checkpoint(const std::filesystem::path& path);

}  // namespace mtrain::run
