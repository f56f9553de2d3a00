// Chooses the checkpoint from which a run starts, on all ranks alike.
#pragma once
#include <chrono>
#include <optional>

#include "comm/host_collectives.h"
#include "launch/job.h"
#include "plan/options/train_options.h"
#include "run/run_folder.h"
#include "run/run_lock.h"

namespace mtrain::run {

// What rank 0 finds before the ranks are connected: a checkpoint, or damage of the newest one.
struct ClaimedStart {
  std::optional<storage::CheckpointRef> checkpoint;
  std::optional<DamagedStart> damaged;
};
// Calls claim_run_folder().
ClaimedStart claim_start(const plan::FolderOptions& folders, const launch::Job& job);

// Rank 0 chooses. A damaged newest checkpoint is set aside, and the one before it is taken, if all
// ranks confirm the damage from newly opened files. Only rank 0 has the lock.
class StartChoice {
 public:
  StartChoice(const comm::HostCollectives& control, const plan::FolderOptions& folders,
              const launch::Job& job, RunLock* lock, std::chrono::milliseconds patience)
      : control_(control), folders_(folders), job_(job), lock_(lock), patience_(patience) {}

  // Returns the checkpoint to start from, after every rank sees its files; nothing for a new run.
  // Only rank 0 passes what it has claimed. All ranks must call it. Throws RunError if a rank does
  // not see the checkpoint, or if there is none before a damaged one.
  std::optional<storage::CheckpointRef> agree(ClaimedStart claimed);

  // Replaces a checkpoint whose damage showed when it was loaded; all ranks must call it with the
  // same damage. Returns the same checkpoint if the files are sound when they are read again.
  // Throws the damage if the run may not set the checkpoint aside: it was named by its path.
  std::optional<storage::CheckpointRef> replace(const storage::CheckpointRef& start,
                                                const storage::DamagedCheckpoint& damage);

 private:
  bool confirmed(const std::filesystem::path& file, int64_t block) const;
  ClaimedStart set_aside(const DamagedStart& damage) const;
  void require_visible(const storage::CheckpointRef& start, const std::string& identity) const;

  const comm::HostCollectives& control_;
  const plan::FolderOptions& folders_;
  const launch::Job& job_;
  RunLock* lock_;
  const std::chrono::milliseconds patience_;
};

}  // namespace mtrain::run
