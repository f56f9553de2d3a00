#include "run/run_lock.h"

#include <map>
#include <utility>

#include <fmt/core.h>

#include "base/log.h"

namespace mtrain::run {

namespace fs = std::filesystem;

namespace {

constexpr const char *kRunDir = "train.run_dir", *kCheckpointDir = "checkpoint.dir";

// Returns one path for all names of a folder, whether it exists or not.
fs::path whole_path(const fs::path& folder) {
  std::error_code error;
  const fs::path absolute = fs::absolute(folder, error);
  fs::path whole = fs::weakly_canonical(absolute, error);
  if (error || whole.empty()) whole = (absolute.empty() ? folder : absolute).lexically_normal();
  return whole;
}

}  // namespace

RunLock::RunLock(const plan::MeetingPlan& plan, const launch::Job& job,
                 const std::function<void(const std::string&)>& waiting)
    : folders_(plan.folders),
      job_(job),
      waiting_(waiting),
      holds_checkpoints_(plan.checkpoint.saves()) {
  // Sorted: of two runs with the same folders, one then gets both.
  std::map<fs::path, std::pair<fs::path, const char*>> folders;
  folders[whole_path(folders_.run_dir)] = {folders_.run_dir, kRunDir};
  if (holds_checkpoints_)
    folders.emplace(whole_path(folders_.checkpoint_dir),
                    std::pair(fs::path(folders_.checkpoint_dir), kCheckpointDir));
  for (const auto& [whole, folder] : folders) hold(folder.first, folder.second);
}

void RunLock::hold(const fs::path& folder, const char* setting) {
  locks_.push_back(std::make_unique<storage::FolderLock>(
      folder,
      storage::FolderLockOptions{
          .job = job_.id, .attempt = job_.restarts, .setting = setting, .waiting = waiting_}));
  if (locks_.back()->is_lease() && !std::exchange(leased_, true))
    log::warn(
        fmt::format("the file system of {} has no locks: the run renews {} every 10 s instead, "
                    "and another run can see from its age whether this one is still active",
                    folder.string(), (folder / ".lock").string()));
}

void RunLock::hold_checkpoints() {
  if (!holds_checkpoints_ && whole_path(folders_.checkpoint_dir) != whole_path(folders_.run_dir))
    hold(folders_.checkpoint_dir, kCheckpointDir);
  holds_checkpoints_ = true;
}

RunLock::~RunLock() {
  while (!locks_.empty()) locks_.pop_back();  // a folder of checkpoints may be in the run folder
}

void RunLock::require_held() {
  for (const auto& lock : locks_) lock->require_held();
}

void RunLock::require_held_lately() const {
  for (const auto& lock : locks_) lock->require_held_lately();
}

}  // namespace mtrain::run
