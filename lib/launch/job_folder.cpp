#include "launch/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace mtrain::launch {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "mtrain-launch-job-";

// Returns a descriptor of the folder, locked by this process until it is closed; -1: another
// process has the lock, or the folder is not this user's.
int lock_folder(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info;
  if (fd >= 0 && fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
      flock(fd, LOCK_EX | LOCK_NB) == 0)
    return fd;
  const int why = errno;
  if (fd >= 0) close(fd);
  errno = why;
  return -1;
}

}  // namespace

JobFolder::JobFolder() {
  // Until a new folder is locked, another launcher may mistake it for a stale one.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    std::string name = (fs::temp_directory_path() / kPrefix).string() + "XXXXXX";
    if (!mkdtemp(name.data())) throw RunError(fmt::format("{}: {}", name, std::strerror(errno)));
    path_ = name;
    lock_ = lock_folder(path_);
    // If this file system has no locks, other launchers cannot lock the folder either, so they do
    // not remove it.
    const bool no_locks = lock_ < 0 && errno != EWOULDBLOCK;
    std::error_code ignored;
    if ((lock_ >= 0 || no_locks) && fs::exists(path_, ignored)) return;
    if (lock_ >= 0) close(lock_);
  }
  throw RunError(fmt::format("cannot make a folder in {}", fs::temp_directory_path().string()),
                 "set TMPDIR to another folder");
}

JobFolder::~JobFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_);
}

void remove_stale_job_folders() {
  std::error_code error;
  fs::directory_iterator it(fs::temp_directory_path(error), error), end;
  for (; !error && it != end; it.increment(error)) {
    if (!it->path().filename().native().starts_with(kPrefix)) continue;
    const int lock = lock_folder(it->path());
    if (lock < 0) continue;
    std::error_code ignored;
    fs::remove_all(it->path(), ignored);
    close(lock);
  }
}

}  // namespace mtrain::launch
