// Decides which run a folder belongs to. A run never mixes its files with those of another run, and
// never removes files of another run.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/job.h"
#include "plan/options/train_options.h"
#include "storage/checkpoint_dir.h"
#include "storage/damaged_checkpoint.h"

namespace mtrain::run {

// The newest checkpoint of this run is damaged. The run may set it aside, and start from the one
// before it, once all ranks confirm the damage.
class DamagedStart : public storage::DamagedCheckpoint {
 public:
  explicit DamagedStart(const storage::DamagedCheckpoint& e) : DamagedCheckpoint(e) {}
  const std::string& what_is_wrong() const { return message(); }
};

// Returns the checkpoint that a run starts from: the one of checkpoint.load, or nothing for a new
// run. A restarted job continues from the newest checkpoint that it has saved itself; if it has
// saved none, it starts as it did the first time. Throws UserError if the run folder or the folder
// of checkpoints holds the files of another run. Throws DamagedStart instead of the newest
// checkpoint of checkpoint.load=latest, or of a restarted job. Changes nothing.
std::optional<storage::CheckpointRef> claim_run_folder(const plan::FolderOptions& folders,
                                                       const launch::Job& job);

// Whether this start continues the run in the folder: it loads the newest checkpoint, or another
// start of the same job has written the files.
bool continues_run(const plan::FolderOptions& folders, const launch::Job& job);

// Returns the damage as a DamagedStart if it showed while `start` was loaded, and the run may set
// the checkpoint aside.
std::optional<DamagedStart> replaceable(const plan::FolderOptions& folders, const launch::Job& job,
                                        const storage::CheckpointRef& start,
                                        const storage::DamagedCheckpoint& damage);

// Returns whether the checkpoint that a run starts from is in the folder to which the run saves.
bool is_own_checkpoint(const plan::FolderOptions& folders, const storage::CheckpointRef& start);

// Makes the run folder, and removes the temporary files that killed runs have left in it. Throws
// UserError if the folder cannot be made.
void make_run_folder(const plan::FolderOptions& folders);

// Keeps, under other names, the files that a run abandons when it starts from `start`. It renames
// the checkpoints of later steps, and copies the metrics. For a new run it renames existing
// metrics. Returns a line for the log about each file. Call it after `start` has been loaded, and
// before anything is written. Calls `renaming` before it renames checkpoints.
std::vector<std::string> set_aside_abandoned(const plan::FolderOptions& folders,
                                             const std::optional<storage::CheckpointRef>& start,
                                             const std::function<void()>& renaming = {});

// Records in the run folder that its files, and those in the folder of checkpoints, now belong to
// this job. `job_ids` are the ids of all ranks; any of them identifies the job to
// claim_run_folder() after a restart. `start` is the checkpoint from which this start begins. Call
// it after set_aside_abandoned(), and before the run writes anything else.
void write_job(const plan::FolderOptions& folders, const std::vector<std::string>& job_ids,
               int restarts, const std::optional<storage::CheckpointRef>& start);
// Returns the ids that write_job() has recorded; none if the folder has no such record.
std::set<std::string, std::less<>> recorded_jobs(const std::filesystem::path& run_folder);

}  // namespace mtrain::run
