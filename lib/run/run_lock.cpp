#include "run/run_lock.h"

#include <map>
#include <utility>

#include <fmt/core.h>

#include "base/log.h"

namespace mtrain::run {

namespace fs = std::filesystem;

RunLock::RunLock(const plan::MeetingPlan& plan, const launch::Job& job,
                 const std::function<void(const std::string&)>& waiting) {
  const bool saves = plan.checkpoint.saves();
  // Sorted: of two runs with the same folders, one then gets both.
  std::map<fs::path, fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    std::error_code error;
    const fs::path absolute = fs::absolute(folder, error);
    fs::path whole = fs::weakly_canonical(absolute, error);
    if (error || whole.empty()) whole = (absolute.empty() ? folder : absolute).lexically_normal();
    folders.emplace(whole, folder);
  };
  add(plan.folders.run_dir);
  if (saves) add(plan.folders.checkpoint_dir);
  bool leased = false;
  for (const auto& [canonical, folder] : folders) {
    const bool run = folder == plan.folders.run_dir;
    locks_.push_back(std::make_unique<storage::FolderLock>(
        folder, storage::FolderLockOptions{.job = job.id,
                                           .attempt = job.restarts,
                                           .setting = run ? "train.run_dir" : "checkpoint.dir",
                                           .waiting = waiting}));
    if (locks_.back()->is_lease() && !std::exchange(leased, true))
      log::warn(
          fmt::format("the file system of {} has no locks: the run renews {} every 10 s instead, "
                      "and another run can see from its age whether this one is still active",
                      folder.string(), (folder / ".lock").string()));
  }
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
