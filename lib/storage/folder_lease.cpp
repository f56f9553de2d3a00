#include "storage/folder_lease.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {
std::chrono::nanoseconds modified_at(const struct stat& info) {
  return std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
}
}  // namespace

FolderLease::FolderLease(fs::path folder, std::chrono::milliseconds renew)
    : folder_(std::move(folder)) {
  renewer_ = std::thread([this, renew] {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, renew, [this] { return stop_; }))
      ::utimensat(AT_FDCWD, folder_.c_str(), nullptr, 0);
  });
}

FolderLease::~FolderLease() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  renewer_.join();
}

std::optional<std::chrono::nanoseconds> file_system_now(const fs::path& prefix) {
  std::string name = prefix.string() + ".XXXXXX";
  const int probe = ::mkostemp(name.data(), O_CLOEXEC);
  struct stat info {};
  const bool known = probe >= 0 && ::fstat(probe, &info) == 0;
  if (probe >= 0) {
    ::close(probe);
    ::unlink(name.c_str());
  }
  return known ? std::optional(modified_at(info)) : std::nullopt;
}

std::chrono::nanoseconds age_of(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return std::chrono::nanoseconds(0);
  const auto now = file_system_now(path.parent_path() / ".clock");
  return now ? *now - modified_at(info) : std::chrono::nanoseconds(0);
}

}  // namespace mtrain::storage
