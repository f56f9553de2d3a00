// Keeps a run's folders to itself: the run folder, and the folder of checkpoints if it saves any.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/job.h"
#include "plan/meeting_plan.h"
#include "storage/folder_lock.h"

namespace mtrain::run {

// Rank 0 holds it for all ranks, from before it looks into the folders until it has written the
// last file. Commands that only read a run take none.
class RunLock {
 public:
  // Makes the folders. Throws UserError, which names the other run, if one of them is in use. An
  // earlier attempt of the same job gets some time to end, while `waiting` gets a line about it.
  RunLock(const plan::MeetingPlan& plan, const launch::Job& job,
          const std::function<void(const std::string&)>& waiting);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // These throw RunError if another run has taken a folder. The second looks at no file.
  void require_held();
  void require_held_lately() const;

 private:
  std::vector<std::unique_ptr<storage::FolderLock>> locks_;
};

}  // namespace mtrain::run
