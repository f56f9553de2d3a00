// Shows other hosts that a folder is in use, by its time of modification.
#pragma once
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

namespace mtrain::storage {

inline constexpr std::chrono::seconds kLeaseRenewal{10};
inline constexpr std::chrono::minutes kLeaseStale{10};  // age at which a lease is stale

// Renews the time of modification of a folder while it lives.
class FolderLease {
 public:
  explicit FolderLease(std::filesystem::path folder,
                       std::chrono::milliseconds renew = kLeaseRenewal);
  ~FolderLease();
  FolderLease(const FolderLease&) = delete;
  FolderLease& operator=(const FolderLease&) = delete;

 private:
  const std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread renewer_;
};

// Returns how long ago a file or folder was modified, by the clock of its file system, since clocks
// of hosts may differ. Makes and removes a temporary file beside it. Returns 0 if this is unknown.
std::chrono::nanoseconds age_of(const std::filesystem::path& path);

// Returns the time of the clock of the file system, from a new file whose name begins with
// `prefix`; nothing if no file can be made there. The clock of this host may differ from it.
std::optional<std::chrono::nanoseconds> file_system_now(const std::filesystem::path& prefix);

}  // namespace mtrain::storage
