// One owner of a folder at a time, among the processes of all hosts that share it. The file `.lock`
// in the folder says who the owner is.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace mtrain::storage {

struct FolderLockOptions {
  std::string job;      // the launcher's id of this job; empty without a launcher
  int attempt = 0;      // how often the launcher has started the job again
  std::string setting;  // the recipe's name for the folder, such as train.run_dir
  // Takes a lease at once, as on file systems without locks.
  bool lease = false;
  std::chrono::milliseconds renew = std::chrono::seconds(10);
  std::chrono::milliseconds stale = std::chrono::minutes(10);  // a lease not renewed for so long
  // How long an earlier attempt of the same job may take to end. It no longer renews its lease.
  std::chrono::milliseconds wait = std::chrono::seconds(30);
  // Gets "waiting for runs/a, which is in use by process 7 on host since ..." again and again.
  std::function<void(const std::string&)> waiting = {};
};

// Holds the folder from construction to destruction. The kernel frees a lock when its process dies.
// Where the file system has no locks (ENOLCK, EOPNOTSUPP, ...) the file itself is the lock: a
// lease, made with O_EXCL and renewed by a thread. The descriptor does not pass to programs that
// are started.
class FolderLock {
 public:
  // Makes the folder if there is none. Throws UserError, which names the owner, if the folder has
  // another one, or if the folder cannot be written.
  FolderLock(const std::filesystem::path& folder, FolderLockOptions options);
  // Removes the file, and the folder if the constructor made it and nothing else is in it.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool is_lease() const;
  // Throws RunError if the folder has got another owner. Takes a lock again whose file was removed.
  void require_held();
  // The same, of what the thread that renews the file has seen. Reads no file.
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
