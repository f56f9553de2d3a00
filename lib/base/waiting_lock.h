// A lock between processes of a host that do the same work: one does it, and the others wait for
// its result.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace mtrain {

// Holds the lock of a file, which it makes, until the end of its life or of the process. On a file
// system without locks nobody waits.
class WaitingLock {
 public:
  // Waits for the process that has the lock. Calls `meanwhile` several times a second with the time
  // since the wait began; it may throw. Throws RunError with this hint if the file cannot be made.
  WaitingLock(const std::filesystem::path& path, const std::string& hint,
              const std::function<void(std::chrono::milliseconds waited)>& meanwhile);
  ~WaitingLock();
  WaitingLock(const WaitingLock&) = delete;
  WaitingLock& operator=(const WaitingLock&) = delete;

 private:
  int fd_;
};

}  // namespace mtrain
