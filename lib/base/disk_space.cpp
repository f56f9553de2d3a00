#include "base/disk_space.h"

#include <unistd.h>

namespace mtrain {

int64_t free_disk_bytes(const struct statvfs& info, bool is_root) {
  if (info.f_blocks == 0) return -1;  // a file system that does not count its space
  return int64_t(is_root ? info.f_bfree : info.f_bavail) * int64_t(info.f_frsize);
}

int64_t free_disk_bytes(const std::filesystem::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return -1;
  return free_disk_bytes(info, ::geteuid() == 0);
}

}  // namespace mtrain
