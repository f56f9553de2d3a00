#include "run/folder_watch.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/error.h"

namespace mtrain::run {

FolderWatch::FolderWatch(std::filesystem::path folder) : folder_(std::move(folder)) {
  struct stat info {};
  if (::stat(folder_.c_str(), &info) == 0) device_ = info.st_dev, inode_ = info.st_ino;
}

void FolderWatch::check() const {
  struct stat info {};
  const bool exists = ::stat(folder_.c_str(), &info) == 0;
  // Other failures may be temporary failures of the file system.
  if (!exists && errno != ENOENT && errno != ENOTDIR) return;
  if (exists && info.st_dev == device_ && info.st_ino == inode_) return;
  throw RunError(fmt::format("the run folder {} was {} while the run used it", folder_.string(),
                             exists ? "replaced by another" : "deleted or renamed"),
                 "the run's metrics and checkpoints are where the folder is now; continue from "
                 "there with checkpoint.load=<path>");
}

}  // namespace mtrain::run
