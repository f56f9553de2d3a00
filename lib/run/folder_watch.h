// Notices that the run folder is no longer the one that the run began with.
#pragma once
#include <sys/types.h>

#include <filesystem>

namespace mtrain::run {

// Deleting or renaming the folder does not end the writes to files that are open in it, and the
// next save would make a new folder of the same name, in which another run may have begun.
class FolderWatch {
 public:
  explicit FolderWatch(std::filesystem::path folder);  // which exists
  // Throws RunError, which names the folder, if it was deleted, renamed or replaced.
  void check() const;

 private:
  std::filesystem::path folder_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace mtrain::run
