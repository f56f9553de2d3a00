// Gives a run exclusive use of its folders: the run folder, and the folder of checkpoints if it
// saves any.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/job.h"
#include "plan/meeting_plan.h"
#include "storage/folder_lock.h"

namespace mtrain::run {

// Rank 0 holds it for all ranks, from before it reads the folders until it has written the last
// file. Commands that only read a run take no lock.
class RunLock {
 public:
  // Makes the folders. Throws UserError, which names the other run, if one of them is in use. If an
  // earlier attempt of the same job uses it, waits some time for it to end, and passes a line about
  // this to `waiting`.
  RunLock(const plan::MeetingPlan& plan, const launch::Job& job,
          const std::function<void(const std::string&)>& waiting);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Takes the folder of checkpoints, if this run saves none and has not taken it yet: it will
  // rename some. Throws UserError if another run saves there, or if the folder cannot be written.
  void hold_checkpoints();

  // These throw RunError if another run has taken a folder. The second one accesses no file.
  void require_held();
  void require_held_lately() const;

 private:
  void hold(const std::filesystem::path& folder, const char* setting);

  const plan::FolderOptions folders_;
  const launch::Job job_;
  const std::function<void(const std::string&)> waiting_;
  bool holds_checkpoints_;
  bool leased_ = false;
  std::vector<std::unique_ptr<storage::FolderLock>> locks_;
};

}  // namespace mtrain::run
