// Detects that the run folder is no longer the one that the run began with.
#pragma once
#include <sys/types.h>

#include <filesystem>

namespace mtrain::run {

// If the folder is deleted or renamed, writes to its open files still succeed. The next save would
// then create a new folder of the same name, or write into the folder of another run.
class FolderWatch {
 public:
  explicit FolderWatch(std::filesystem::path folder);  // `folder` must exist
  // Throws RunError, which names the folder, if it was deleted, renamed or replaced.
  void check() const;

 private:
  std::filesystem::path folder_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace mtrain::run
