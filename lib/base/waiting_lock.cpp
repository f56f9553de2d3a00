#include "base/waiting_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace mtrain {

WaitingLock::WaitingLock(const std::filesystem::path& path, const std::string& hint,
                         const std::function<void(std::chrono::milliseconds waited)>& meanwhile)
    : fd_(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
  if (fd_ < 0)
    throw RunError(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)), hint);
  // flock() itself would wait without a sign of life.
  constexpr auto kLongest = std::chrono::milliseconds(250);
  std::chrono::milliseconds waited{0};
  try {
    for (auto pause = std::chrono::milliseconds(1); ::flock(fd_, LOCK_EX | LOCK_NB) != 0;) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return;  // a file system without locks
      meanwhile(waited);
      std::this_thread::sleep_for(pause);
      waited += pause;
      pause = std::min(kLongest, 2 * pause);
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

WaitingLock::~WaitingLock() { ::close(fd_); }

}  // namespace mtrain
