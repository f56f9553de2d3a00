// Ensures that a folder has one owner at a time, among the processes of all hosts that share it.
// The file `.lock` in the folder names the owner.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "storage/folder_lease.h"

namespace mtrain::storage {

struct FolderLockOptions {
  std::string job;      // the launcher's id of this job; empty without a launcher
  int attempt = 0;      // how often the launcher has restarted the job
  std::string setting;  // the recipe's name for the folder, such as train.run_dir
  // Always takes a lease, as on file systems without locks.
  bool lease = false;
  std::chrono::milliseconds renew = kLeaseRenewal;
  std::chrono::milliseconds stale = kLeaseStale;  // age at which a lease is stale
  // How long an earlier attempt of the same job may take to end. It no longer renews its lease.
  std::chrono::milliseconds wait = std::chrono::seconds(30);
  // Gets "waiting for runs/a, which is in use by process 7 on host since ..." repeatedly.
  std::function<void(const std::string&)> waiting = {};
};

// Holds the folder from construction to destruction. The kernel frees a lock when its process dies.
// If the file system has no locks (ENOLCK, EOPNOTSUPP, ...), the file itself is the lock: a lease,
// made with O_EXCL and renewed by a thread. Programs that this process starts do not inherit the
// descriptor.
class FolderLock {
 public:
  // Makes the folder if there is none. Throws UserError if the folder has another owner, which the
  // error names, or if the folder cannot be written.
  FolderLock(const std::filesystem::path& folder, FolderLockOptions options);
  // Removes the file, and the folder if the constructor made it and nothing else is in it.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool is_lease() const;
  // Throws RunError if the folder has a new owner. Takes the lock again if its file was removed.
  void require_held();
  // Throws if the renewing thread has seen a new owner. Reads no file.
  void require_held_lately() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns whether a process holds the folder. Takes and writes nothing. A lease counts while its
// owner renews it.
bool is_folder_held(const std::filesystem::path& folder);

std::string utc_now();  // such as 2026-01-31T23:59:59Z

}  // namespace mtrain::storage
